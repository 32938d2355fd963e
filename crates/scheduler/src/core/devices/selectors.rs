//! CEL selectors of devices, compiled once; each is evaluated once for each version of a device.

use std::collections::HashMap;

use mainstay_cel::{Budget, Program, Variables, device_environment};

use super::pool::{Device, DeviceId};

/// Expressions that are kept; claims come and go, and with them theirs.
const MAX_EXPRESSIONS: usize = 1_000;
/// Verdicts that are kept of one expression.
const MAX_VERDICTS: usize = 100_000;

#[derive(Debug, Default)]
pub struct SelectorCache(HashMap<String, CachedSelector>);

#[derive(Debug)]
struct CachedSelector {
    program: Result<Program, String>,
    verdicts: HashMap<DeviceId, (u64, Result<bool, String>)>,
}

impl SelectorCache {
    /// Whether the expression selects the device; the error is that of upstream's evaluator. What is not known yet is
    /// evaluated at the expense of the budget.
    pub fn selects(&mut self, expression: &str, device: &Device, budget: &mut Budget) -> Result<bool, String> {
        if !self.0.contains_key(expression) {
            if self.0.len() >= MAX_EXPRESSIONS {
                self.0.clear();
            }
            let program = Program::compile(&device_environment(), expression)
                .map_err(|error| format!("CEL compile error: {error}"));
            self.0.insert(expression.to_owned(), CachedSelector { program, verdicts: HashMap::new() });
        }
        let Some(cached) = self.0.get_mut(expression) else { return Ok(false) };
        if let Some((version, verdict)) = cached.verdicts.get(&device.id)
            && *version == device.version
        {
            return verdict.clone();
        }
        let verdict = match &cached.program {
            Ok(program) => evaluate(program, device, budget),
            Err(error) => Err(error.clone()),
        };
        if budget.remaining() == 0 {
            return verdict; // with another budget it may be another
        }
        if cached.verdicts.len() >= MAX_VERDICTS {
            cached.verdicts.clear();
        }
        cached.verdicts.insert(device.id.clone(), (device.version, verdict.clone()));
        verdict
    }
}

fn evaluate(program: &Program, device: &Device, budget: &mut Budget) -> Result<bool, String> {
    let variables = Variables::new().value("device", device.facts.to_value());
    let value = program.evaluate(&variables, budget);
    match value.map(|value| value.as_bool()) {
        Ok(Some(selected)) => Ok(selected),
        Ok(None) => Err("CEL result is not a bool".to_owned()),
        Err(error) => Err(format!("CEL runtime error: {error}")),
    }
}
