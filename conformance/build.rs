//! Rebuilds the crate when a vector is added or removed: `include_dir!` does not track that by itself.

fn main() {
    println!("cargo::rerun-if-changed=vectors");
    println!("cargo::rerun-if-changed=client");
}
