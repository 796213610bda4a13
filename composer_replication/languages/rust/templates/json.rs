// JSON that is read. Of numbers there are none but as text.
#![allow(dead_code, unused, warnings, clippy::all)]

extern crate std;
use self::std::prelude::v1::*;
use self::std::iter::FromIterator;
use super::values::{Fresh, Read};

/// A value.
#[derive(Clone)]
pub enum Json {
    Null,
    Bool(bool),
    Text(String),
    List(Vec<Json>),
    Object(Vec<(String, Json)>),
}

impl Json {
    pub fn get(&self, name: &str) -> Option<&Json> {
        match self {
            Json::Object(fields) => fields.iter().find(|field| field.0 == name).map(|field| &field.1),
            _ => None,
        }
    }

    pub fn text(&self, name: &str) -> Option<&str> {
        match self.get(name)? {
            Json::Text(text) => Some(text),
            _ => None,
        }
    }

    pub fn items(&self) -> &[Json] {
        match self {
            Json::List(items) => items,
            _ => &[],
        }
    }

    /// Reads the item of a list.
    pub fn item(&self, number: usize) -> Option<&Json> {
        self.get("e")?.items().get(number)
    }

    /// Reads all items of a list.
    pub fn all<T, C: FromIterator<T>>(&self) -> Option<C> {
        match self.get("e")? {
            Json::List(items) => items.iter().map(T::read).collect(),
            _ => None,
        }
    }

    /// Reads the field of a struct; one that is not written down is as in a new value.
    pub fn field<T>(&self, name: &str) -> Option<T> {
        for pair in self.get("e")?.items() {
            match pair.items() {
                [Json::Text(own), value] if own == name => return T::read(value),
                _ => continue,
            }
        }
        T::fresh()
    }

    /// Returns the name of an enum's variant.
    pub fn variant(&self) -> Option<&str> {
        match self.item(0)?.items() {
            [Json::Text(_), value] => value.text("v"),
            _ => None,
        }
    }

    pub fn parse(text: &str) -> Option<Json> {
        let letters: Vec<char> = text.chars().collect();
        let mut at = 0;
        Json::value(&letters, &mut at)
    }

    fn value(letters: &[char], at: &mut usize) -> Option<Json> {
        Json::blank(letters, at);
        match *letters.get(*at)? {
            '"' => Json::string(letters, at).map(Json::Text),
            '[' => {
                let mut items = Vec::new();
                *at += 1;
                while !Json::closes(letters, at, ']')? {
                    items.push(Json::value(letters, at)?);
                }
                Some(Json::List(items))
            }
            '{' => {
                let mut fields = Vec::new();
                *at += 1;
                while !Json::closes(letters, at, '}')? {
                    let name = Json::string(letters, at)?;
                    Json::blank(letters, at);
                    *at += 1;
                    fields.push((name, Json::value(letters, at)?));
                }
                Some(Json::Object(fields))
            }
            _ => {
                let start = *at;
                while *at < letters.len() && !",]} \n".contains(letters[*at]) {
                    *at += 1;
                }
                let word: String = letters[start..*at].iter().collect();
                match word.as_str() {
                    "" => None,
                    "null" => Some(Json::Null),
                    "true" => Some(Json::Bool(true)),
                    "false" => Some(Json::Bool(false)),
                    _ => Some(Json::Text(word)),
                }
            }
        }
    }

    fn blank(letters: &[char], at: &mut usize) {
        while *at < letters.len() && letters[*at].is_whitespace() {
            *at += 1;
        }
    }

    /// Steps over a comma, or a bracket at the end.
    fn closes(letters: &[char], at: &mut usize, bracket: char) -> Option<bool> {
        Json::blank(letters, at);
        if *letters.get(*at)? == ',' {
            *at += 1;
            Json::blank(letters, at);
        }
        let ends = *letters.get(*at)? == bracket;
        *at += ends as usize;
        Some(ends)
    }

    fn string(letters: &[char], at: &mut usize) -> Option<String> {
        let mut text = String::new();
        *at += 1;
        loop {
            let letter = *letters.get(*at)?;
            *at += 1;
            match letter {
                '"' => return Some(text),
                '\\' => {
                    let escaped = *letters.get(*at)?;
                    *at += 1;
                    text.push(match escaped {
                        'n' => '\n',
                        't' => '\t',
                        'r' => '\r',
                        'b' => '\u{8}',
                        'f' => '\u{c}',
                        'u' => {
                            let code = Json::code(letters, at)?;
                            if (0xd800..0xdc00).contains(&code) {
                                *at += 2;
                                let low = Json::code(letters, at)?;
                                char::from_u32(0x10000 + ((code - 0xd800) << 10) + low.checked_sub(0xdc00)?)?
                            } else {
                                char::from_u32(code)?
                            }
                        }
                        other => other,
                    });
                }
                letter => text.push(letter),
            }
        }
    }

    fn code(letters: &[char], at: &mut usize) -> Option<u32> {
        let digits: String = letters.get(*at..*at + 4)?.iter().collect();
        *at += 4;
        u32::from_str_radix(&digits, 16).ok()
    }
}
