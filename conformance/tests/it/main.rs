//! Tests of the vectors and of the runner that plays them.

mod catalogue;
mod client_vectors;
mod core;
mod runner;
mod schema;
