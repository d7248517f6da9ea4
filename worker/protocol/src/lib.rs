//! Messages between the engine and its worker process.
