//! Converts systemd and fleet units to Kubernetes manifests. Pure: text in, manifests and notes out.
//!
//! Every option of a unit is either translated, known to be needless here (`docker rm` before a start: every container is
//! fresh), or named in a note with its line. What contradicts itself is refused, as fleet refused it.

mod command_line;
mod convert;
mod docker_run;
mod placement;
mod pod;
mod specifiers;
mod unit_file;
mod unit_name;
mod unit_state;
mod workload;

pub use convert::{ConvertError, Converted, Note, Unit, convert};
pub use unit_file::{ParseError, UnitFile, UnitOption};
pub use unit_name::{NameError, UnitName};
pub use unit_state::{UnitState, set_state};
