//! Finds the node for a request and sends it there.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use axum::extract::Request;
use axum::http::{HeaderMap, StatusCode};
use axum::response::Response;
use belljar_api::error::ApiError;
use belljar_api::gateway_errors::{no_node, node_failed, node_unreachable, session_moving};
use belljar_engine::store::{NodeRow, NodeState, Route, StoreError};
use belljar_engine::volumes::MAX_PER_SESSION;
use belljar_engine::{Principal, in_full};
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use serde::de::IgnoredAny;
use serde::{Deserialize, Deserializer};

use super::body::Permit;
use super::placement::{self, Wish};
use super::proxy::{self, NodeAddress, Outgoing, Payload, ProxyError};
use super::routes::Target;
use super::{Gateway, unavailable};

/// The id of the node that owns the session, in an answer 421.
const OWNER: &str = "belljar-owner";

/// The code of the error with which a stopping node refuses a request.
const STOPPING: &str = "stopping";

/// The part of a body that says where it goes. Bodies that are not valid go to any node, which says what is wrong.
#[derive(Debug, Default, Deserialize)]
struct Addressed {
    key: Option<String>,
    session_id: Option<String>,
    #[serde(default, deserialize_with = "keys_of")]
    volumes: Vec<String>,
}

/// The keys of an object.
fn keys_of<'de, D: Deserializer<'de>>(value: D) -> Result<Vec<String>, D::Error> {
    let object = Option::<BTreeMap<String, IgnoredAny>>::deserialize(value)?;
    Ok(object.unwrap_or_default().into_keys().collect())
}

impl Gateway {
    /// Passes a request on to the node that can answer it.
    pub(super) async fn pass_on(
        self: &Arc<Self>,
        target: Target,
        request: Request,
        who: Option<&Principal>,
    ) -> Result<Response, ApiError> {
        let (outgoing, body) = Outgoing::new(request);
        let outgoing = outgoing.linking_to(self.public_url.as_ref());
        match target {
            Target::Session(id) => {
                let (payload, _permit) = self.buffers.keep_small(body).await?;
                self.to_session(&id, outgoing.with(payload)).await
            }
            Target::SessionInBody => {
                let (payload, _permit) = self.buffers.keep(body).await?;
                let session = addressed(&payload).session_id;
                let outgoing = outgoing.with(payload);
                match session {
                    Some(id) => self.to_session(&id, outgoing).await,
                    None => self.to_any(outgoing, &Wish::default()).await,
                }
            }
            Target::NewSession => {
                let (payload, permit) = self.buffers.keep(body).await?;
                self.to_new_session(outgoing, payload, permit, who).await
            }
            Target::Run => {
                let (payload, _permit) = self.buffers.keep(body).await?;
                let wish = self.node_of_volumes(who, &addressed(&payload).volumes).await?;
                self.to_any(outgoing.with(payload), &wish).await
            }
            Target::Volume(name) => {
                let (payload, _permit) = self.buffers.keep_small(body).await?;
                let wish = self.node_of_volumes(who, &[name]).await?;
                self.to_any(outgoing.with(payload), &wish).await
            }
            Target::AnyNode | Target::Own(_) => {
                let (payload, _permit) = self.buffers.keep_small(body).await?;
                self.to_any(outgoing.with(payload), &Wish::default()).await
            }
        }
    }

    /// A session with a key may exist already: then its node answers.
    async fn to_new_session(
        self: &Arc<Self>,
        outgoing: Outgoing,
        payload: Payload,
        _permit: Permit,
        who: Option<&Principal>,
    ) -> Result<Response, ApiError> {
        let Addressed { key, volumes, .. } = addressed(&payload);
        let outgoing = outgoing.with(payload);
        if let (Some(key), Some(who)) = (key, who) {
            let found = self.records()?.route_by_key(&who.tenant, &key).await;
            if let Some((id, route)) = found.map_err(|error| no_database(&error))?
                && !route.ended
            {
                return self.to_session(&id, outgoing).await;
            }
        }
        let wish = self.node_of_volumes(who, &volumes).await?;
        self.to_any(outgoing, &wish).await
    }

    /// The node that has these volumes. Volumes that do not exist are not considered: every node says that.
    async fn node_of_volumes(
        &self,
        who: Option<&Principal>,
        volumes: &[String],
    ) -> Result<Wish, ApiError> {
        let mut nodes = BTreeSet::new();
        // Nodes refuse more of them.
        for name in volumes.iter().take(MAX_PER_SESSION) {
            if let (Some(who), Ok(name)) = (who, name.parse()) {
                let node = self.records()?.volume_node(&who.tenant, &name).await;
                nodes.extend(node.map_err(|error| no_database(&error))?);
            }
        }
        let wish = Wish { pinned: nodes.pop_first(), ..Wish::default() };
        if !nodes.is_empty() {
            let message = "these volumes are on different nodes, and a session runs on one node";
            return Err(ApiError::new(StatusCode::CONFLICT, "volumes_apart", message));
        }
        if wish.pinned.is_some() && self.choose(&wish).is_empty() {
            return Err(no_node("the node with this volume cannot be reached"));
        }
        Ok(wish)
    }

    /// To the owner of the session. A cached route that turns out to be old is read again, once.
    async fn to_session(
        self: &Arc<Self>,
        id: &str,
        mut outgoing: Outgoing,
    ) -> Result<Response, ApiError> {
        // A body that can be sent only once goes by a fresh route.
        if let Some(node) = self.cached(id).filter(|_| outgoing.is_kept()) {
            match self.send(&node, &mut outgoing).await {
                Ok(answer) if answer.status() != StatusCode::MISDIRECTED_REQUEST => {
                    return Ok(proxy::answer(answer, &self.nodes, &node, outgoing));
                }
                Ok(_) => {}
                Err(ProxyError::Unreachable { .. }) => {}
                Err(error) => return Err(failed(&error)),
            }
            self.routes.forget(id);
            self.metrics.resent.inc();
        }
        let route = self.records()?.route(id).await.map_err(|error| no_database(&error))?;
        match route {
            Some(Route { owner: Some((node, address)), .. }) => {
                let node = NodeAddress { id: node, address };
                let answer = self.send(&node, &mut outgoing).await.map_err(|e| failed(&e))?;
                let answer = for_client(answer)?;
                self.routes.set(id, &node.id);
                Ok(proxy::answer(answer, &self.nodes, &node, outgoing))
            }
            // It has ended, or does not exist: every node has its records.
            None | Some(Route { ended: true, .. }) => self.to_any(outgoing, &Wish::default()).await,
            Some(route) => self.wake(id, route, outgoing).await,
        }
    }

    /// The session has no owner: the node that gets the request claims it.
    async fn wake(
        self: &Arc<Self>,
        id: &str,
        route: Route,
        outgoing: Outgoing,
    ) -> Result<Response, ApiError> {
        let snapshot = self.records()?.snapshot_of(id).await.map_err(|e| no_database(&e))?;
        let of_snapshot = |name: &str| Some(snapshot.as_ref()?.get(name)?.as_str()?.to_owned());
        let wish =
            Wish { pinned: route.pinned, class: of_snapshot("class"), hint: of_snapshot("node") };
        if wish.pinned.is_some() && self.choose(&wish).is_empty() {
            let message = "the node with the files of this session cannot be reached";
            return Err(no_node(message));
        }
        let (response, node) = self.to_first(outgoing, &wish).await?;
        if response.status().is_success() {
            self.routes.set(id, &node.id);
        }
        Ok(response)
    }

    async fn to_any(
        self: &Arc<Self>,
        outgoing: Outgoing,
        wish: &Wish,
    ) -> Result<Response, ApiError> {
        Ok(self.to_first(outgoing, wish).await?.0)
    }

    /// To the best node that can be reached and does not refuse for want of room.
    async fn to_first(
        self: &Arc<Self>,
        mut outgoing: Outgoing,
        wish: &Wish,
    ) -> Result<(Response, NodeAddress), ApiError> {
        let mut candidates = self.choose(wish).into_iter().peekable();
        let mut failure = None;
        while let Some(node) = candidates.next() {
            let answer = match self.send(&node, &mut outgoing).await {
                Ok(answer) => answer,
                Err(error @ ProxyError::Unreachable { .. }) if outgoing.is_kept() => {
                    failure = Some(failed(&error));
                    continue;
                }
                Err(error) => return Err(failed(&error)),
            };
            if answer.status() == StatusCode::MISDIRECTED_REQUEST
                && let Some(owner) = self.owner_in(answer.headers()).filter(|_| outgoing.is_kept())
            {
                self.metrics.resent.inc();
                let answer = self.send(&owner, &mut outgoing).await.map_err(|e| failed(&e))?;
                let answer = proxy::answer(for_client(answer)?, &self.nodes, &owner, outgoing);
                return Ok((answer, owner));
            }
            let may_try_another = outgoing.is_kept() && candidates.peek().is_some();
            let answer = match may_try_another && is_refusal(answer.status()) {
                false => answer,
                true => match without_effect(answer).await {
                    Refusal::WithoutEffect => {
                        self.metrics.resent.inc();
                        continue;
                    }
                    Refusal::Other(response) => return Ok((*response, node)),
                },
            };
            return Ok((proxy::answer(for_client(answer)?, &self.nodes, &node, outgoing), node));
        }
        Err(failure.unwrap_or_else(|| no_node("no node can take this request at present")))
    }

    async fn send(
        &self,
        node: &NodeAddress,
        outgoing: &mut Outgoing,
    ) -> Result<Response<Incoming>, ProxyError> {
        proxy::send(&self.clients, &self.nodes, node, outgoing).await
    }

    /// The node that owned the session when it was last used here. A draining node gives its sessions away.
    fn cached(&self, session: &str) -> Option<NodeAddress> {
        let node = self.nodes.find(&self.routes.find(session)?)?;
        (node.state == NodeState::Ready && placement::is_alive(&node)).then(|| address_of(&node))
    }

    fn choose(&self, wish: &Wish) -> Vec<NodeAddress> {
        let nodes = self.nodes.list();
        let chosen = placement::candidates(&nodes, wish, random_below);
        chosen.into_iter().map(address_of).collect()
    }

    fn owner_in(&self, headers: &HeaderMap) -> Option<NodeAddress> {
        let id = headers.get(OWNER)?.to_str().ok()?;
        self.nodes.find(id).as_ref().map(address_of)
    }
}

fn address_of(node: &NodeRow) -> NodeAddress {
    NodeAddress { id: node.id.clone(), address: node.address.clone() }
}

fn random_below(limit: usize) -> usize {
    let bytes = belljar_sys::process::random_bytes::<8>();
    usize::try_from(u64::from_ne_bytes(bytes) % limit.max(1) as u64).unwrap_or_default()
}

fn addressed(payload: &Payload) -> Addressed {
    match payload {
        Payload::Kept(bytes) => serde_json::from_slice(bytes).unwrap_or_default(),
        Payload::Stream(_) => Addressed::default(),
    }
}

/// An answer 421 is for gateways only, so it is not in the document of the API. The node did nothing, so clients can try
/// again.
fn for_client<B>(answer: Response<B>) -> Result<Response<B>, ApiError> {
    match answer.status() {
        StatusCode::MISDIRECTED_REQUEST => Err(session_moving()),
        _ => Ok(answer),
    }
}

/// A status with which a node may have refused a request before it did anything.
fn is_refusal(status: StatusCode) -> bool {
    matches!(status, StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE)
}

enum Refusal {
    /// The node did nothing; another one may do it.
    WithoutEffect,
    Other(Box<Response>),
}

/// Reads why a node refused. These answers are short.
async fn without_effect(answer: Response<Incoming>) -> Refusal {
    let (parts, body) = answer.into_parts();
    let bytes = body.collect().await.map(|body| body.to_bytes()).unwrap_or_default();
    let error: serde_json::Value = serde_json::from_slice(&bytes).unwrap_or_default();
    let code = error["error"]["code"].as_str();
    if parts.status == StatusCode::TOO_MANY_REQUESTS || code == Some(STOPPING) {
        return Refusal::WithoutEffect;
    }
    Refusal::Other(Box::new(Response::from_parts(parts, bytes.into())))
}

fn failed(error: &ProxyError) -> ApiError {
    let message = in_full(error);
    tracing::warn!("{message}");
    match error {
        ProxyError::Unreachable { .. } => node_unreachable(),
        ProxyError::Sent => session_moving(),
        ProxyError::Broken { .. } | ProxyError::Lost { .. } => node_failed(),
    }
}

fn no_database(error: &StoreError) -> ApiError {
    tracing::warn!("failed to find the node of a session: {}", in_full(error));
    unavailable("the database cannot be reached at present")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clients_never_get_421() {
        let answer = |status| for_client(Response::builder().status(status).body(()).unwrap());
        assert!(answer(StatusCode::NOT_FOUND).is_ok());
        let error = answer(StatusCode::MISDIRECTED_REQUEST).unwrap_err();
        assert_eq!((error.status.as_u16(), error.code), (503, "session_moving"));
        let document = belljar_api::openapi().to_string();
        assert!(!document.contains("session_elsewhere") && !document.contains("\"421\""));
        assert!(document.contains("`session_moving`"));
    }
}
