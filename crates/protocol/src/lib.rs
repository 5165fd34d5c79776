//! The Forrst wire protocol in types.
