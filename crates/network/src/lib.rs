//! Addresses for pods: a bridge on each machine, a veth pair and an address for each pod.
