//! A vector that is added or removed has to be embedded anew, which the embedding macro cannot see by itself.

fn main() {
    println!("cargo::rerun-if-changed=vectors");
}
