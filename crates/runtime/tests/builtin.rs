//! The built-in runtime, held to what every runtime must do and to what only it promises. Needs root.

#[path = "builtin/fence.rs"]
mod fence;
#[path = "builtin/outliving.rs"]
mod outliving;
#[path = "builtin/pod.rs"]
mod pod;
#[path = "builtin/protection.rs"]
mod protection;
#[path = "builtin/subject.rs"]
mod subject;

mod suite {
    mainstay_runtime::runtime_suite!(async || crate::subject::Subject::new().await);
}
