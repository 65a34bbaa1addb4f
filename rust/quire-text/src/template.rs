//! Chat templates: Jinja as transformers runs it (trim_blocks, lstrip_blocks, loop controls, Python's string methods,
//! tojson, raise_exception, strftime_now, generation blocks).
//!
//! A template cannot include another, and rendering ends when its fuel does: fuel bounds both the time and the memory.

use crate::error::{Error, Result, Status};
use crate::json;
use crate::strftime::LocalTime;
use minijinja::value::{Value, ValueKind};
use minijinja::{Environment, ErrorKind};
use std::collections::BTreeMap;

/// One unit is one instruction or 64 bytes of new data. Templates of the field need about 10 a byte of messages.
const BASE_FUEL: u64 = 2_000_000;
const FUEL_PER_BYTE: u64 = 64;
const MAX_SOURCE: usize = 4 << 20;
const NAME: &str = "chat";

pub struct ChatTemplate {
    env: Environment<'static>,
    special_tokens: BTreeMap<String, Value>,
}

/// Marks the error that a template raises itself.
#[derive(Debug)]
struct Raised(String);

impl std::fmt::Display for Raised {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}
impl std::error::Error for Raised {}

impl ChatTemplate {
    /// `special_tokens` is a JSON object of names such as bos_token and their texts.
    pub fn compile(source: &str, special_tokens: &str) -> Result<Self> {
        if source.len() > MAX_SOURCE {
            return Err(Error::new(Status::TooLarge, format!("the chat template is longer than {MAX_SOURCE} bytes")));
        }
        let special_tokens = serde_json::from_str(special_tokens)
            .map_err(|e| Error::invalid(format!("special tokens must be a JSON object: {e}")))?;

        let mut env = environment();
        let syntax = minijinja::syntax::SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build();
        env.set_syntax(syntax.map_err(|e| Error::new(Status::Internal, e.to_string()))?);
        env.add_template_owned(NAME, without_generation_tags(source))
            .map_err(|e| Error::corrupt(format!("the chat template cannot be parsed: {}", describe(&e))))?;
        Ok(ChatTemplate { env, special_tokens })
    }

    /// `messages` is a JSON list, `options` a JSON object: add_generation_prompt, tools, documents, and any other name
    /// that the template may use.
    pub fn render(&self, messages: &str, options: &str, now: LocalTime) -> Result<String> {
        now.check()?;
        let parsed: Value =
            serde_json::from_str(messages).map_err(|e| Error::invalid(format!("messages cannot be read: {e}")))?;
        if parsed.kind() != ValueKind::Seq {
            return Err(Error::invalid("messages must be a list"));
        }
        let options_map: BTreeMap<String, Value> = serde_json::from_str(options)
            .map_err(|e| Error::invalid(format!("template options must be a JSON object: {e}")))?;
        if options_map.contains_key("messages") {
            return Err(Error::invalid("template options must not name 'messages'"));
        }

        let mut context = self.special_tokens.clone();
        context.insert("add_generation_prompt".into(), Value::from(false));
        context.insert("tools".into(), Value::from(()));
        context.insert("documents".into(), Value::from(()));
        context.insert(
            "strftime_now".into(),
            Value::from_function(move |format: String| now.format(&format)),
        );
        context.extend(options_map);
        context.insert("messages".into(), parsed);

        let mut env = self.env.clone();
        env.set_fuel(Some(BASE_FUEL + FUEL_PER_BYTE * (messages.len() + options.len()) as u64));
        let template = env.get_template(NAME).map_err(render_error)?;
        template.render(Value::from(context)).map_err(render_error)
    }
}

fn environment() -> Environment<'static> {
    let mut env = Environment::new();
    env.set_auto_escape_callback(|_| minijinja::AutoEscape::None);
    env.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
    env.add_filter("tojson", json::tojson);
    env.add_function("raise_exception", |message: String| -> std::result::Result<Value, minijinja::Error> {
        Err(minijinja::Error::new(ErrorKind::InvalidOperation, message.clone()).with_source(Raised(message)))
    });
    env
}

/// transformers marks the assistant's tokens with {% generation %} blocks, which print what they hold.
fn without_generation_tags(source: &str) -> String {
    let tag = regex::Regex::new(r"\{%([-+]?)\s*(end)?generation\s*([-+]?)%\}").expect("a constant pattern compiles");
    tag.replace_all(source, |found: &regex::Captures| {
        let word = if found.get(2).is_some() { "endif" } else { "if true" };
        format!("{{%{} {word} {}%}}", &found[1], &found[3])
    })
    .into_owned()
}

fn describe(error: &minijinja::Error) -> String {
    let detail = error.detail().map_or_else(|| error.kind().to_string(), |d| format!("{}: {d}", error.kind()));
    error.line().map_or_else(|| detail.clone(), |line| format!("{detail} (line {line})"))
}

fn render_error(error: minijinja::Error) -> Error {
    let mut source: Option<&(dyn std::error::Error + 'static)> = Some(&error);
    let mut innermost = &error;
    while let Some(cause) = source {
        if let Some(Raised(message)) = cause.downcast_ref() {
            return Error::invalid(format!("the chat template refuses these messages: {message}"));
        }
        if let Some(cause) = cause.downcast_ref::<minijinja::Error>() {
            innermost = cause;
        }
        source = cause.source();
    }
    if innermost.kind() == ErrorKind::OutOfFuel {
        return Error::new(Status::TooLarge, "the chat template does more work than its messages can need");
    }
    Error::invalid(format!("the chat template fails on these messages: {}", describe(innermost)))
}
