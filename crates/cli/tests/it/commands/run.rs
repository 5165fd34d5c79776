//! `forrst run`: commands that end, lose their lock, get signals, or use a terminal.

mod ending;
mod job;
mod loss;
mod parent;
mod process;
mod signals;
mod silence;
mod terminal;
