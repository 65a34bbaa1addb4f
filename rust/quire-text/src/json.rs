//! Python's json.dumps over template values: what `tojson` means in chat templates (no HTML escapes, ", " and ": ").

use minijinja::value::{Kwargs, Value, ValueKind};
use minijinja::{Error, ErrorKind};

const MAX_DEPTH: usize = 256;

struct Style {
    item_separator: String,
    key_separator: String,
    indent: Option<String>,
    ensure_ascii: bool,
    sort_keys: bool,
}

/// The `tojson` filter, with the arguments that transformers gives it.
pub fn tojson(value: &Value, kwargs: Kwargs) -> Result<Value, Error> {
    let indent = match kwargs.get::<Option<Value>>("indent")? {
        None => None,
        Some(v) if v.is_none() || v.is_undefined() => None,
        Some(v) => Some(match v.as_str() {
            Some(text) => text.to_owned(),
            None => " ".repeat(usize::try_from(v)?.min(64)),
        }),
    };
    let mut style = Style {
        item_separator: if indent.is_some() { "," } else { ", " }.to_owned(),
        key_separator: ": ".to_owned(),
        indent,
        ensure_ascii: kwargs.get::<Option<bool>>("ensure_ascii")?.unwrap_or(false),
        sort_keys: kwargs.get::<Option<bool>>("sort_keys")?.unwrap_or(false),
    };
    if let Some(separators) = kwargs.get::<Option<Vec<String>>>("separators")? {
        let [item, key]: [String; 2] = separators
            .try_into()
            .map_err(|_| Error::new(ErrorKind::InvalidOperation, "tojson: separators must be two strings"))?;
        style.item_separator = item;
        style.key_separator = key;
    }
    kwargs.assert_all_used()?;
    let mut out = String::new();
    write_value(&mut out, value, &style, 0)?;
    Ok(Value::from(out))
}

fn write_value(out: &mut String, value: &Value, style: &Style, depth: usize) -> Result<(), Error> {
    if depth > MAX_DEPTH {
        return Err(Error::new(ErrorKind::InvalidOperation, format!("tojson: nested deeper than {MAX_DEPTH}")));
    }
    match value.kind() {
        ValueKind::None => out.push_str("null"),
        ValueKind::Bool => out.push_str(if value.is_true() { "true" } else { "false" }),
        ValueKind::Number => write_number(out, value)?,
        ValueKind::String => write_string(out, value.as_str().unwrap_or_default(), style.ensure_ascii),
        ValueKind::Seq | ValueKind::Iterable => {
            let items = value.try_iter()?.map(|item| (None, item)).collect();
            write_container(out, ['[', ']'], items, style, depth)?;
        }
        ValueKind::Map => {
            let mut items = Vec::new();
            for key in value.try_iter()? {
                items.push((Some(key_text(&key)?), value.get_item(&key)?));
            }
            if style.sort_keys {
                items.sort_by(|a, b| a.0.cmp(&b.0));
            }
            write_container(out, ['{', '}'], items, style, depth)?;
        }
        other => return Err(Error::new(ErrorKind::InvalidOperation, format!("tojson: {other} has no JSON form"))),
    }
    Ok(())
}

fn write_container(
    out: &mut String,
    brackets: [char; 2],
    items: Vec<(Option<String>, Value)>,
    style: &Style,
    depth: usize,
) -> Result<(), Error> {
    let new_line = |out: &mut String, depth: usize| {
        if let Some(indent) = &style.indent {
            out.push('\n');
            out.push_str(&indent.repeat(depth));
        }
    };
    let empty = items.is_empty();
    out.push(brackets[0]);
    for (i, (key, item)) in items.into_iter().enumerate() {
        if i > 0 {
            out.push_str(&style.item_separator);
        }
        new_line(out, depth + 1);
        if let Some(key) = key {
            write_string(out, &key, style.ensure_ascii);
            out.push_str(&style.key_separator);
        }
        write_value(out, &item, style, depth + 1)?;
    }
    if !empty {
        new_line(out, depth);
    }
    out.push(brackets[1]);
    Ok(())
}

fn key_text(key: &Value) -> Result<String, Error> {
    match key.kind() {
        ValueKind::String => Ok(key.as_str().unwrap_or_default().to_owned()),
        ValueKind::Bool => Ok(if key.is_true() { "true" } else { "false" }.to_owned()),
        ValueKind::None => Ok("null".to_owned()),
        ValueKind::Number => {
            let mut out = String::new();
            write_number(&mut out, key)?;
            Ok(out)
        }
        other => Err(Error::new(ErrorKind::InvalidOperation, format!("tojson: {other} cannot be a key"))),
    }
}

fn write_number(out: &mut String, value: &Value) -> Result<(), Error> {
    if value.is_integer() {
        out.push_str(&value.to_string());
    } else {
        out.push_str(&python_float(f64::try_from(value.clone())?));
    }
    Ok(())
}

/// repr(float): the shortest digits that round-trip, with an exponent below 1e-4 and from 1e16 on.
fn python_float(x: f64) -> String {
    if x.is_nan() {
        return "NaN".to_owned();
    }
    if x.is_infinite() {
        return if x > 0.0 { "Infinity" } else { "-Infinity" }.to_owned();
    }
    let scientific = format!("{x:e}");
    let (digits, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if x != 0.0 && !(-4..16).contains(&exponent) {
        return format!("{digits}e{}{:02}", if exponent < 0 { '-' } else { '+' }, exponent.abs());
    }
    let plain = x.to_string();
    if plain.contains('.') {
        plain
    } else {
        plain + ".0"
    }
}

fn write_string(out: &mut String, text: &str, ensure_ascii: bool) {
    out.push('"');
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\u{8}' => out.push_str("\\b"),
            '\u{c}' => out.push_str("\\f"),
            c if c < ' ' || (ensure_ascii && !c.is_ascii()) => {
                for unit in c.encode_utf16(&mut [0; 2]) {
                    out.push_str(&format!("\\u{unit:04x}"));
                }
            }
            c => out.push(c),
        }
    }
    out.push('"');
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn floats_print_like_python() {
        for (x, want) in [
            (1.0, "1.0"),
            (0.1, "0.1"),
            (1e15, "1000000000000000.0"),
            (1e16, "1e+16"),
            (1.5e300, "1.5e+300"),
            (0.0001, "0.0001"),
            (0.00001, "1e-05"),
            (-2.5, "-2.5"),
            (0.0, "0.0"),
            (-0.0, "-0.0"),
        ] {
            assert_eq!(python_float(x), want);
        }
    }
}
