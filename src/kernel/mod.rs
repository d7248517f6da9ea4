//! Arithmetic on slices. Nothing here knows of models or files.

pub mod format;
