//! The vectors, and what plays them.

mod catalogue;
mod runner;
