//! Section 1 of the wire contract, line by line: what a bad envelope gets, and what every answer looks like.

mod body;
mod call;
mod checks;
mod codes;
mod context;
mod extensions;
mod id;
mod protocol;
mod repeated_keys;
mod response;
mod several_problems;
mod unknown_fields;
