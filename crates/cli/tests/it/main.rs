//! The `forrst` binary, run as users run it.

mod access;
mod commands;
mod crash;
mod dependencies;
mod observe;
mod postgres;
mod redis;
mod serve;
mod vectors;
