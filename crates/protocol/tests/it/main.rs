//! The parser and the types, from outside.

mod contract_section_1;
mod hostile_input;
mod parse_error_position;
mod round_trip;
mod schemas;
