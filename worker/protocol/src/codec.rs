//! Payloads to bytes and back. The only place that names bincode.

use bincode::config::{Configuration, Fixint, Limit, LittleEndian};
use serde::Serialize;
use serde::de::DeserializeOwned;
use thiserror::Error;

use crate::frame::MAX_PAYLOAD;

/// A payload could not be written or understood.
#[derive(Debug, Error)]
pub enum CodecError {
    /// The value cannot be expressed in a payload.
    #[error("cannot encode a payload: {0}")]
    Encode(String),
    /// The bytes are not a value of the expected type.
    #[error("cannot decode a payload: {0}")]
    Decode(String),
    /// The value was complete before the payload ended.
    #[error("a payload has {extra} bytes after its value")]
    Trailing {
        /// Bytes left over.
        extra: usize,
    },
}

/// Fixed-width integers: the layout of a payload can be read off a dump. The limit bounds what a corrupt length inside
/// a payload can allocate.
fn config() -> Configuration<LittleEndian, Fixint, Limit<MAX_PAYLOAD>> {
    bincode::config::standard().with_fixed_int_encoding().with_limit::<MAX_PAYLOAD>()
}

pub(crate) fn encode<T: Serialize>(value: &T) -> Result<Vec<u8>, CodecError> {
    bincode::serde::encode_to_vec(value, config()).map_err(|e| CodecError::Encode(e.to_string()))
}

pub(crate) fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, CodecError> {
    let (value, used) =
        bincode::serde::decode_from_slice(bytes, config()).map_err(|e| CodecError::Decode(e.to_string()))?;
    match bytes.len() - used {
        0 => Ok(value),
        extra => Err(CodecError::Trailing { extra }),
    }
}
