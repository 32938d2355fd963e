//! Containers with nothing but the kernel: one shim process per pod, `libcontainer`, our own image store.
