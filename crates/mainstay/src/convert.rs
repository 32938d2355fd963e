//! `mainstay convert unit`: manifests of systemd and fleet units, on standard output; what they do not say, on standard error.

use std::{fs, path::PathBuf};

use anyhow::{Context, anyhow};
use clap::{Args, Subcommand, ValueEnum};
use mainstay_api::encode::to_yaml;
use mainstay_units::{Unit, UnitFile, UnitName, UnitState, convert, set_state};

use crate::exit::Exit;

#[derive(Debug, Args)]
pub struct ConvertOptions {
    #[command(subcommand)]
    pub format: ConvertFormat,
}

#[derive(Debug, Subcommand)]
pub enum ConvertFormat {
    /// Write the manifests of systemd or fleet units, and name every line that has no translation
    Unit(UnitOptions),
}

#[derive(Debug, Args)]
pub struct UnitOptions {
    /// Unit files, named as their units are; units that refer to each other belong together
    #[arg(required = true, value_name = "FILE")]
    pub files: Vec<PathBuf>,

    /// An instance of a template that is among the files, such as web@1; may be repeated
    #[arg(long = "instance", value_name = "NAME")]
    pub instances: Vec<String>,

    /// The state of the units: of those that are not launched there are manifests, and no pods
    #[arg(long, value_name = "STATE", value_enum, default_value_t = StateChoice::Launched)]
    pub state: StateChoice,

    /// Fail if any line has no translation
    #[arg(long)]
    pub strict: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum StateChoice {
    Inactive,
    Loaded,
    Launched,
}

impl From<StateChoice> for UnitState {
    fn from(choice: StateChoice) -> Self {
        match choice {
            StateChoice::Inactive => Self::Inactive,
            StateChoice::Loaded => Self::Loaded,
            StateChoice::Launched => Self::Launched,
        }
    }
}

pub fn run(options: &ConvertOptions) -> Result<(), Exit> {
    let ConvertFormat::Unit(options) = &options.format;
    let units = read_units(options)?;
    let mut converted = convert(&units).map_err(|error| Exit::Refused(error.into()))?;
    for note in &converted.notes {
        eprintln!("{note}");
    }
    if options.strict && !converted.notes.is_empty() {
        return Err(Exit::Refused(anyhow!("{} lines have no translation", converted.notes.len())));
    }
    converted.manifests.iter_mut().for_each(|manifest| set_state(manifest, options.state.into()));
    let documents: Vec<_> = converted.manifests.iter().map(to_yaml).collect();
    print!("{}", documents.join("---\n"));
    Ok(())
}

/// The units of the files, with instances in place of templates.
fn read_units(options: &UnitOptions) -> Result<Vec<Unit>, Exit> {
    let (mut units, mut templates) = (Vec::new(), Vec::new());
    for path in &options.files {
        let text = fs::read_to_string(path).with_context(|| format!("read {}", path.display()))?;
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let refused = |error: anyhow::Error| Exit::Refused(error.context(path.display().to_string()));
        let name = UnitName::parse(&name).map_err(|error| refused(error.into()))?;
        let file = UnitFile::parse(&text).map_err(|error| refused(error.into()))?;
        let unit = Unit { name, file };
        if unit.name.is_template() { templates.push(unit) } else { units.push(unit) }
    }
    let mut used = vec![false; templates.len()];
    for instance in &options.instances {
        let refused = |error: anyhow::Error| Exit::Refused(error.context("--instance"));
        let name = UnitName::parse(instance).map_err(|error| refused(error.into()))?;
        let is_template =
            |template: &Unit| template.name.prefix() == name.prefix() && template.name.suffix() == name.suffix();
        let Some(index) =
            templates.iter().position(is_template).filter(|_| name.instance().is_some_and(|name| !name.is_empty()))
        else {
            return Err(refused(anyhow!("{name} is an instance of none of the templates given")));
        };
        used[index] = true;
        units.push(Unit { name, file: templates[index].file.clone() });
    }
    // A template without instances is refused by the conversion, which says what to give.
    units.extend(templates.into_iter().zip(used).filter(|(_, used)| !used).map(|(template, _)| template));
    Ok(units)
}
