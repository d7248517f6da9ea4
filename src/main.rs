//! Parse, run, exit code. The only place that prints an error.
fn main() {}
