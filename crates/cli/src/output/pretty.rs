//! JSON on several lines, for people.

/// Indents JSON. It works on the text, because parsing would change the order of members and the digits of numbers.
pub(crate) fn pretty(json: &str) -> String {
    let mut text = String::with_capacity(json.len() * 2);
    let mut depth = 0_usize;
    let mut rest = json.trim().chars().filter(skip_blanks()).peekable();
    let mut is_in_string = false;
    let mut is_escaped = false;
    while let Some(c) = rest.next() {
        if is_in_string {
            text.push(c);
            is_in_string = is_escaped || c != '"';
            is_escaped = !is_escaped && c == '\\';
            continue;
        }
        match c {
            '{' | '[' => {
                text.push(c);
                if let Some(end) = rest.next_if(|next| matches!(next, '}' | ']')) {
                    text.push(end);
                } else {
                    depth += 1;
                    break_line(&mut text, depth);
                }
            }
            '}' | ']' => {
                depth = depth.saturating_sub(1);
                break_line(&mut text, depth);
                text.push(c);
            }
            ',' => {
                text.push(c);
                break_line(&mut text, depth);
            }
            ':' => text.push_str(": "),
            c => {
                is_in_string = c == '"';
                text.push(c);
            }
        }
    }
    text
}

fn break_line(text: &mut String, depth: usize) {
    text.push('\n');
    text.extend(std::iter::repeat_n("  ", depth));
}

/// Drops the blanks between tokens, and keeps those in strings.
fn skip_blanks() -> impl FnMut(&char) -> bool {
    let mut is_in_string = false;
    let mut is_escaped = false;
    move |c| {
        if is_in_string {
            is_in_string = is_escaped || *c != '"';
            is_escaped = !is_escaped && *c == '\\';
            return true;
        }
        is_in_string = *c == '"';
        !c.is_whitespace()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    #[test]
    fn members_stay_in_their_order_and_numbers_as_they_are() {
        let text = pretty(r#"{"b": 1.0,"a":[1,{"x":[]}],"c":{},"d": "a, {b}: \"c\" \\"}"#);
        let expected = r#"{
  "b": 1.0,
  "a": [
    1,
    {
      "x": []
    }
  ],
  "c": {},
  "d": "a, {b}: \"c\" \\"
}"#;
        assert_eq!(text, expected);
    }

    #[test]
    fn indented_json_has_the_same_value() {
        for value in [
            json!(null),
            json!("plain \" text"),
            json!([[[]], {"": "\\"}, -1.5e300, "a:b,c"]),
            json!({"deep": {"er": ["and", " on ", {"on": null}]}}),
        ] {
            let text = pretty(&value.to_string());
            assert_eq!(serde_json::from_str::<Value>(&text).unwrap(), value);
            assert_eq!(text, format!("{value:#}"));
        }
    }
}
