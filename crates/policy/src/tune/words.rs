//! How a Java launcher and its virtual machine take texts apart.
//!
//! Sources: `Arguments::parse_options_buffer` of HotSpot (variables), `args.c` of its launcher (argument
//! files).

/// The options in a variable such as `JAVA_TOOL_OPTIONS`: white space divides them, and quotes of either
/// kind keep it in; there is no escape. `None`: a quote has no end, and the machine will not start.
pub fn of_variable(text: &str) -> Option<Vec<String>> {
    let (mut words, mut word, mut quote) = (Vec::new(), None::<String>, None);
    for c in text.chars() {
        match quote {
            Some(open) if c == open => quote = None,
            Some(_) => word.get_or_insert_default().push(c),
            None if c == '"' || c == '\'' => {
                quote = Some(c);
                word.get_or_insert_default();
            }
            None if is_space(c) => words.extend(word.take()),
            None => word.get_or_insert_default().push(c),
        }
    }
    words.extend(word);
    quote.is_none().then_some(words)
}

/// The arguments in a file that was named with `@`: as in a variable, and with comments, and inside of
/// quotes a backslash takes away what the next character means.
pub fn of_argument_file(text: &str) -> Vec<String> {
    let (mut words, mut word, mut quote) = (Vec::new(), None::<String>, None);
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        match quote {
            Some(open) if c == open => quote = None,
            Some(_) if c == '\\' => match chars.next() {
                // A line that goes on, without the blanks at the begin of the next.
                Some('\n' | '\r') => {
                    let rest = chars.as_str().trim_start_matches(is_space);
                    chars = rest.chars();
                }
                Some(c) => word.get_or_insert_default().push(c),
                None => {}
            },
            // A quote ends with its line, closed or not.
            Some(_) if c == '\n' || c == '\r' => {
                quote = None;
                words.extend(word.take());
            }
            Some(_) => word.get_or_insert_default().push(c),
            None if c == '"' || c == '\'' => {
                quote = Some(c);
                word.get_or_insert_default();
            }
            None if c == '#' && word.is_none() => {
                let line = chars.as_str();
                let end = line.find(['\n', '\r']).unwrap_or(line.len());
                chars = line[end..].chars();
            }
            None if is_space(c) => words.extend(word.take()),
            None => word.get_or_insert_default().push(c),
        }
    }
    words.extend(word);
    words
}

/// As C has it.
fn is_space(c: char) -> bool {
    matches!(c, ' ' | '\t' | '\n' | '\r' | '\x0b' | '\x0c')
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn variables_are_taken_apart_as_the_machine_does() {
        let words = |text| of_variable(text).unwrap();
        assert_eq!(words(""), [""; 0]);
        assert_eq!(words(" -Xmx1g\t-Da=b\n"), ["-Xmx1g", "-Da=b"]);
        assert_eq!(
            words("-Da='b c' '-XX:+UseG1GC'"),
            ["-Da=b c", "-XX:+UseG1GC"]
        );
        assert_eq!(words(r#"-Da="it's" -Xmn"1"m"#), ["-Da=it's", "-Xmn1m"]);
        assert_eq!(words(r"-Da=b\ c"), [r"-Da=b\", "c"], "no escapes");
        assert_eq!(words("''"), [""]);
        assert_eq!(of_variable("-Da='b -Xmx1g"), None);
    }

    #[test]
    fn argument_files_are_taken_apart_as_the_launcher_does() {
        let text = "# -XX:+UseZGC\n-Xmx1g -XX:+UseG1GC # not this\n\"-Da=b c\\\" d\" 'x\\\n   y'\n-cp\na#b";
        assert_eq!(
            of_argument_file(text),
            ["-Xmx1g", "-XX:+UseG1GC", "-Da=b c\" d", "xy", "-cp", "a#b"]
        );
        assert_eq!(
            of_argument_file("'open\n-XX:+UseZGC"),
            ["open", "-XX:+UseZGC"]
        );
    }

    proptest! {
        #[test]
        fn words_without_quotes_come_back(words in proptest::collection::vec("[a-zA-Z:+=-]{1,9}", 0..6)) {
            prop_assert_eq!(of_variable(&words.join(" ")), Some(words.clone()));
            prop_assert_eq!(of_argument_file(&words.join("\n")), words);
        }

        #[test]
        fn any_text_is_taken_apart(text in "[ \\n\\\\\"'#a@é-]{0,40}") {
            let _ = (of_variable(&text), of_argument_file(&text));
        }
    }
}
