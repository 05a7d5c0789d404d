//! Fields that several bodies and queries have.

use std::collections::BTreeMap;

use belljar_engine::network::Policy;
use belljar_engine::size;
use belljar_engine::volumes::{AskedVolumes, MAX_PER_SESSION, VolumeMode, VolumeName};
use serde::Deserialize;
use utoipa::ToSchema;

use crate::error::ApiError;

/// The most items on one page of a list.
const MAX_PAGE: u32 = 1000;

/// A number of bytes.
#[derive(Debug, Clone, Copy, Deserialize, ToSchema)]
#[serde(try_from = "NumberOrText")]
#[schema(value_type = NumberOrText)]
pub(crate) struct Size(pub u64);

#[derive(Debug, Deserialize, ToSchema)]
#[serde(untagged, expecting = "expected a number of bytes, or text such as 512M")]
pub(crate) enum NumberOrText {
    Number(u64),
    Text(String),
}

impl TryFrom<NumberOrText> for Size {
    type Error = String;

    fn try_from(size: NumberOrText) -> Result<Size, String> {
        match size {
            NumberOrText::Number(bytes) => Ok(Size(bytes)),
            NumberOrText::Text(text) => size::parse(&text)
                .map(Size)
                .ok_or_else(|| format!("`{text}` is not a size; expected bytes, or such as 512M")),
        }
    }
}

pub(crate) fn parse_network(value: serde_json::Value) -> Result<Policy, ApiError> {
    Policy::try_from(value).map_err(|why| ApiError::invalid(format!("network: {why}")))
}

pub(crate) fn page_size(asked: Option<u32>) -> Result<u32, ApiError> {
    match asked.unwrap_or(100) {
        limit @ 1..=MAX_PAGE => Ok(limit),
        _ => Err(ApiError::invalid(format!("limit: expected 1 to {MAX_PAGE}"))),
    }
}

/// The volumes of a session or a run.
pub(crate) fn parse_volumes(
    volumes: Option<BTreeMap<String, VolumeMode>>,
) -> Result<Option<AskedVolumes>, ApiError> {
    let Some(volumes) = volumes else { return Ok(None) };
    if volumes.len() > MAX_PER_SESSION {
        return Err(ApiError::invalid(format!("volumes: at most {MAX_PER_SESSION}")));
    }
    let named =
        |(name, mode): (String, VolumeMode)| Ok((parse_volume_name(&name, "volumes")?, mode));
    volumes.into_iter().map(named).collect::<Result<_, _>>().map(Some)
}

pub(crate) fn parse_volume_name(text: &str, field: &str) -> Result<VolumeName, ApiError> {
    text.parse().map_err(|why| ApiError::invalid(format!("{field}: {why}")))
}
