//! Stub until the branch of "s3" is merged.
pub struct S3Server { address: std::net::SocketAddr }
impl S3Server {
    pub async fn start() -> S3Server { S3Server { address: ([127, 0, 0, 1], 9).into() } }
    pub fn address(&self) -> std::net::SocketAddr { self.address }
    pub fn bucket(&self) -> &str { "belljar" }
    pub fn region(&self) -> &str { "us-east-1" }
    pub fn access_key(&self) -> &str { "test" }
    pub fn secret_key(&self) -> &str { "test" }
}
