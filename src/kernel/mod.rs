//! Arithmetic on slices. Nothing here knows of models or files.
//!
//! Every function's result is specified to the bit in `docs/NUMERICS.md`; the scalar code is that
//! specification made executable, and every faster version must equal it exactly.

#[cfg(test)]
pub(crate) mod check;
pub mod format;
pub mod isa;
pub mod op;
pub mod par;
