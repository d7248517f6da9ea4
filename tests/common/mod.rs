//! What several test programs share.

pub mod counting;
pub mod driver;
pub mod golden;
pub mod gpu;
pub mod group;
pub mod legacy;
pub mod place;
pub mod tiny;
