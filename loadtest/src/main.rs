//! Load scenarios against a running fairgate.
fn main() {}
