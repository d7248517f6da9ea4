//! What several test programs share.

pub mod gpu;
pub mod tiny;
