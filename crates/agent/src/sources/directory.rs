//! Static pods, from a watched directory.
