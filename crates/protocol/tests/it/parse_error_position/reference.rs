//! A recogniser of JSON that shares no code with the parser under test.

/// The length of the longest prefix of the body that could still become JSON; `None` if the whole body is JSON.
pub(crate) fn first_error(body: &[u8]) -> Option<usize> {
    let mut at = 0;
    let read = value(body, &mut at).and_then(|()| {
        space(body, &mut at);
        if at == body.len() { Ok(()) } else { Err(at) }
    });
    read.err()
}

fn space(body: &[u8], at: &mut usize) {
    while matches!(body.get(*at), Some(b' ' | b'\t' | b'\n' | b'\r')) {
        *at += 1;
    }
}

fn expect(body: &[u8], at: &mut usize, wanted: impl Fn(u8) -> bool) -> Result<u8, usize> {
    match body.get(*at) {
        Some(byte) if wanted(*byte) => {
            *at += 1;
            Ok(*byte)
        }
        _ => Err(*at),
    }
}

fn value(body: &[u8], at: &mut usize) -> Result<(), usize> {
    space(body, at);
    let word = |at: &mut usize, word: &str| {
        word.bytes()
            .try_for_each(|wanted| expect(body, at, |byte| byte == wanted).map(drop))
    };
    match body.get(*at) {
        Some(b'{') => sequence(body, at, b'}', |at| {
            space(body, at);
            string(body, at)?;
            space(body, at);
            expect(body, at, |byte| byte == b':')?;
            value(body, at)
        }),
        Some(b'[') => sequence(body, at, b']', |at| value(body, at)),
        Some(b'"') => string(body, at),
        Some(b't') => word(at, "true"),
        Some(b'f') => word(at, "false"),
        Some(b'n') => word(at, "null"),
        _ => number(body, at),
    }
}

fn sequence(
    body: &[u8],
    at: &mut usize,
    close: u8,
    mut item: impl FnMut(&mut usize) -> Result<(), usize>,
) -> Result<(), usize> {
    *at += 1;
    space(body, at);
    if expect(body, at, |byte| byte == close).is_ok() {
        return Ok(());
    }
    loop {
        item(at)?;
        space(body, at);
        if expect(body, at, |byte| byte == close || byte == b',')? == close {
            return Ok(());
        }
    }
}

fn string(body: &[u8], at: &mut usize) -> Result<(), usize> {
    expect(body, at, |byte| byte == b'"')?;
    loop {
        match expect(body, at, |byte| byte >= 0x20)? {
            b'"' => return Ok(()),
            b'\\' => escape(body, at)?,
            _ => {}
        }
    }
}

fn escape(body: &[u8], at: &mut usize) -> Result<(), usize> {
    if expect(body, at, |byte| b"\"\\/bfnrtu".contains(&byte))? == b'u' {
        for _ in 0..4 {
            expect(body, at, |byte| byte.is_ascii_hexdigit())?;
        }
    }
    Ok(())
}

fn number(body: &[u8], at: &mut usize) -> Result<(), usize> {
    let digits = |at: &mut usize| -> Result<(), usize> {
        expect(body, at, |byte| byte.is_ascii_digit())?;
        while expect(body, at, |byte| byte.is_ascii_digit()).is_ok() {}
        Ok(())
    };
    let _ = expect(body, at, |byte| byte == b'-');
    if expect(body, at, |byte| byte == b'0').is_err() {
        digits(at)?;
    }
    if expect(body, at, |byte| byte == b'.').is_ok() {
        digits(at)?;
    }
    if expect(body, at, |byte| matches!(byte, b'e' | b'E')).is_ok() {
        let _ = expect(body, at, |byte| matches!(byte, b'+' | b'-'));
        digits(at)?;
    }
    Ok(())
}
