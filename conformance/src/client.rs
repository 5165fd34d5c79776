//! Test vectors for clients: what a client is told to do, how the server behaves, which requests have to arrive, and what the
//! client's caller has to see. [`Stub`] plays the server of one vector; `conformance/README.md` specifies the format.

mod catalogue;
mod reply;
mod script;
mod stub;
mod vector;
mod view;

pub use catalogue::{ClientVectorError, embedded_client_vectors};
pub use stub::{Stub, StubVerdict};
pub use vector::ClientVector;
