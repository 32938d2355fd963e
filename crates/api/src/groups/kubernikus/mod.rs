//! kubernikus.sap.cc: Klusters in the form of Kubernikus, over the same objects as those of mainstay.dev.

mod kinds;
mod view_strategy;

pub use kinds::kinds;
