//! Lists of completion indexes: `1,3-5,7`.

/// How many indexes a list names, all below `completions` and in order.
pub fn count(list: &str, completions: i32) -> Result<i32, String> {
    let (mut last, mut total) = (None::<i32>, 0);
    if list.is_empty() {
        return Ok(0);
    }
    for interval in list.split(',') {
        let (low, high) = parse(interval, completions)?;
        if let Some(last) = last.filter(|last| *last >= low) {
            return Err(format!("non-increasing order, previous: {last}, current: {low}"));
        }
        total += high - low + 1;
        last = Some(high);
    }
    Ok(total)
}

fn parse(interval: &str, completions: i32) -> Result<(i32, i32), String> {
    let index = |text: &str| {
        let value: i32 = text.parse().map_err(|_| format!("cannot convert string to integer for index: {text:?}"))?;
        if value >= completions { Err(format!("too large index: {text:?}")) } else { Ok(value) }
    };
    match interval.split('-').collect::<Vec<_>>()[..] {
        [one] => index(one).map(|index| (index, index)),
        [low, high] => match (index(low)?, index(high)?) {
            (low, high) if low >= high => Err(format!("non-increasing order, previous: {low}, current: {high}")),
            interval => Ok(interval),
        },
        _ => Err(format!(
            "the fragment {interval:?} violates the requirement that an index interval can have at most two parts separated by '-'"
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn indexes_are_counted() {
        let cases = [
            ("", Ok(0)),
            ("0", Ok(1)),
            ("0,2-4,7", Ok(5)),
            ("3,1", Err("non-increasing order, previous: 3, current: 1")),
            ("4-4", Err("non-increasing order, previous: 4, current: 4")),
            ("10", Err(r#"too large index: "10""#)),
            ("a", Err(r#"cannot convert string to integer for index: "a""#)),
            (
                "1-2-3",
                Err(
                    r#"the fragment "1-2-3" violates the requirement that an index interval can have at most two parts separated by '-'"#,
                ),
            ),
        ];
        for (list, expected) in cases {
            assert_eq!(count(list, 10), expected.map_err(str::to_owned), "{list}");
        }
    }
}
