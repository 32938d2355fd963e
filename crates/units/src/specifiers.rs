//! Specifiers in the values of a unit: `%i`, `%p`, `%n`, `%N`, and `%%` for a percent sign.

use crate::UnitName;

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("%{0} is not known here; %i, %p, %n, %N and %% are")]
pub struct UnknownSpecifier(pub char);

pub fn expand(text: &str, name: &UnitName) -> Result<String, UnknownSpecifier> {
    let mut expanded = String::new();
    let mut characters = text.chars();
    while let Some(character) = characters.next() {
        if character != '%' {
            expanded.push(character);
            continue;
        }
        match characters.next() {
            Some('i') => expanded.push_str(name.instance().unwrap_or_default()),
            Some('p') => expanded.push_str(name.prefix()),
            Some('n') => expanded.push_str(name.as_str()),
            Some('N') => expanded.push_str(name.stem()),
            Some('%') => expanded.push('%'),
            Some(other) => return Err(UnknownSpecifier(other)),
            None => expanded.push('%'),
        }
    }
    Ok(expanded)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn specifiers_stand_for_parts_of_the_name() {
        let name = UnitName::parse("web@7.service").unwrap();
        assert_eq!(expand("%p-%i %n %N 100%% 5%", &name).unwrap(), "web-7 web@7.service web@7 100% 5%");
        assert_eq!(expand("%i|%p", &UnitName::parse("web").unwrap()).unwrap(), "|web");
        assert_eq!(expand("%H", &name), Err(UnknownSpecifier('H')));
    }
}
