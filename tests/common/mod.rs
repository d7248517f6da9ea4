//! What several test programs share.

pub mod golden;
pub mod gpu;
pub mod tiny;
