//! `forrst run`.

mod ending;
mod job;
mod loss;
mod parent;
mod process;
mod signals;
mod silence;
mod terminal;
