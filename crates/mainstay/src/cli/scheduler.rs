//! Flags of the scheduler.

use std::{fs, path::PathBuf, time::Duration};

use anyhow::{Context, anyhow};
use clap::{Args, ValueEnum};
use mainstay_scheduler::{Settings, config_file, core::verdict::ScoringStrategy};

use super::duration;
use crate::exit::Exit;

#[derive(Debug, Default, Args)]
#[command(next_help_heading = "Placing pods")]
pub struct SchedulerOptions {
    /// Where a pod goes that fits in several places: to the emptiest machine, or to the fullest [default: spread]
    #[arg(long, env = "MAINSTAY_PLACEMENT", value_enum)]
    pub placement: Option<PlacementChoice>,

    /// How long a machine that turned a pod away is not asked again for that pod [default: 5s]
    #[arg(long, env = "MAINSTAY_REFUSE_TIME", value_name = "TIME", value_parser = duration)]
    pub refuse_time: Option<Duration>,

    /// Back-off of a pod that could not be placed once; it doubles each time [default: 1s]
    #[arg(long, env = "MAINSTAY_POD_BACKOFF_FIRST", value_name = "TIME", value_parser = duration)]
    pub pod_backoff_first: Option<Duration>,

    /// Longest back-off of a pod that cannot be placed [default: 60s]
    #[arg(long, env = "MAINSTAY_POD_BACKOFF_LONGEST", value_name = "TIME", value_parser = duration)]
    pub pod_backoff_longest: Option<Duration>,

    /// Read these and more from the section [scheduler] of this INI file; flags win
    #[arg(long, env = "MAINSTAY_SCHEDULER_CONFIG", value_name = "FILE")]
    pub scheduler_config: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum PlacementChoice {
    Spread,
    Binpack,
}

impl SchedulerOptions {
    /// What flags, environment, file and stock values come to.
    pub fn settings(&self, offer_ttl: Option<Duration>) -> Result<Settings, Exit> {
        let mut settings = match &self.scheduler_config {
            None => Settings::default(),
            Some(file) => {
                let name = file.display().to_string();
                let text = fs::read_to_string(file).with_context(|| format!("read --scheduler-config {name}"))?;
                let read = config_file::parse(&name, &text).map_err(|error| Exit::Refused(anyhow!(error)))?;
                if !read.ignored.is_empty() {
                    eprintln!("mainstay: {name}: without effect here: {}", read.ignored.join(", "));
                }
                read.settings
            }
        };
        let over = |own: &mut Duration, flag: Option<Duration>| *own = flag.unwrap_or(*own);
        over(&mut settings.offer_ttl, offer_ttl);
        over(&mut settings.refuse_time, self.refuse_time);
        over(&mut settings.backoff.first, self.pod_backoff_first);
        over(&mut settings.backoff.longest, self.pod_backoff_longest);
        if let Some(choice) = self.placement {
            settings.scoring = match choice {
                PlacementChoice::Spread => ScoringStrategy::LeastAllocated,
                PlacementChoice::Binpack => ScoringStrategy::MostAllocated,
            };
        }
        if settings.backoff.first > settings.backoff.longest {
            return Err(Exit::Refused(anyhow!(
                "--pod-backoff-first {:?} is longer than --pod-backoff-longest {:?}",
                settings.backoff.first,
                settings.backoff.longest
            )));
        }
        settings.seed = u64::from(std::process::id());
        Ok(settings)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn error_text(exit: Exit) -> String {
        match exit {
            Exit::Refused(error) => format!("{error:#}"),
            Exit::Failed(_) | Exit::Usage(_) | Exit::Code(_) => panic!("it is the user's fault"),
        }
    }

    #[test]
    fn flags_win_over_the_file_and_the_file_over_stock_values() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("s.ini");
        fs::write(&file, "[scheduler]\noffer-ttl = 7s\nmax-pod-backoff = 20s\n").unwrap();
        let options = SchedulerOptions {
            scheduler_config: Some(file.clone()),
            pod_backoff_longest: Some(30 * SECOND),
            placement: Some(PlacementChoice::Binpack),
            ..SchedulerOptions::default()
        };
        let Ok(settings) = options.settings(None) else { panic!() };
        assert_eq!((settings.offer_ttl, settings.backoff.longest), (7 * SECOND, 30 * SECOND));
        assert_eq!((settings.backoff.first, settings.scoring), (SECOND, ScoringStrategy::MostAllocated));
        fs::write(&file, "[scheduler]\noffer-ttl = soon\n").unwrap();
        let wrong = options.settings(None).map(drop).map_err(error_text).unwrap_err();
        assert!(wrong.contains("s.ini:2: offer-ttl: \"soon\" must be a duration"), "{wrong}");
    }

    #[test]
    fn a_longest_back_off_below_the_first_is_refused() {
        let options = SchedulerOptions { pod_backoff_first: Some(90 * SECOND), ..SchedulerOptions::default() };
        let wrong = options.settings(None).map(drop).map_err(error_text).unwrap_err();
        assert!(wrong.contains("--pod-backoff-first 90s is longer than --pod-backoff-longest 60s"), "{wrong}");
    }
}
