#!/bin/sh
# The life of a lock, with curl alone. Each step prints the answer and checks it.
#
#   examples/curl.sh                                        starts its own server, and stops it
#   FORRST_URL=http://127.0.0.1:7420 examples/curl.sh       uses a running server with --demo
#   FORRST_BIN=target/release/forrst examples/curl.sh       starts this binary
#
# Exits with 0 if every answer was as expected.
set -eu

folder=$(mktemp -d)
server=
waiter=
clean_up() {
    for process in $waiter $server; do kill "$process" 2>/dev/null || true; done
    [ -z "$server" ] || wait "$server" || true
    rm -rf "$folder"
}
trap clean_up EXIT
trap 'exit 130' INT TERM

fail() {
    printf 'FAILED: %s\n' "$1" >&2
    exit 1
}

command -v curl >/dev/null || fail "curl is missing"

start_server() {
    root=$(cd "$(dirname "$0")/.." && pwd)
    target=${CARGO_TARGET_DIR-$root/target}
    binary=${FORRST_BIN-$target/release/forrst}
    [ -n "${FORRST_BIN+set}" ] || [ -x "$binary" ] || binary=$target/debug/forrst
    [ -x "$binary" ] || fail "there is no $binary: run cargo build -p forrst-cli"
    : >"$folder/banner"
    "$binary" serve --demo --store memory: --listen 127.0.0.1:0 >"$folder/banner" 2>"$folder/log" &
    server=$!
    tries=0
    until FORRST_URL=$(sed -n 's|^ *http *\(http://[^/]*\)/forrst.*|\1|p' "$folder/banner") && [ -n "$FORRST_URL" ]; do
        tries=$((tries + 1))
        [ "$tries" -lt 300 ] && kill -0 "$server" 2>/dev/null || { cat "$folder/log" >&2; fail "the server did not start"; }
        sleep 0.1
    done
}
[ -n "${FORRST_URL-}" ] || start_server

# post CALL [EXTENSIONS]: sends a request and prints the answer.
post() {
    curl -sS --max-time 60 "$FORRST_URL/forrst" -H 'content-type: application/json' -d '{
        "protocol": {"name": "forrst", "version": "0.1.0"}, "id": "curl",
        "call": '"$1"', "extensions": ['"${2-}"']}'
}

# charge MORE_OPTIONS: charges a user, under a lock with a key of this run.
key="user:$$"
full_key="lock:payments.charge:$key"
charge() {
    post '{"function": "payments.charge", "arguments": {"user_id": "user_123", "amount": 100}}' \
        '{"urn": "urn:forrst:ext:atomicLock",
          "options": {"key": "'"$key"'", "ttl": {"value": 60, "unit": "second"}'"${1-}"'}}'
}

# lock_function NAME MORE_ARGUMENTS: calls a system function for the lock.
lock_function() {
    post '{"function": "urn:cline:forrst:ext:atomic-lock:fn:'"$1"'", "arguments": {"key": "'"$full_key"'"'"${2-}"'}}'
}

# expect ANSWER TEXT…: prints the answer, which has to contain each text.
expect() {
    answer=$1
    shift
    printf '  %s\n' "$answer"
    for text in "$@"; do
        printf '%s' "$answer" | grep -qF -- "$text" || fail "the answer does not contain $text"
    done
}

echo '1. A charge under a lock, which is released with the answer'
expect "$(charge)" '"status":"succeeded"' '"acquired":true' '"full_key":"'"$full_key"'"' '"fence":"'
expect "$(lock_function status)" '"locked":false'

echo '2. Alice keeps the lock beyond her call'
expect "$(charge ', "owner": "alice", "auto_release": false')" '"acquired":true' '"owner":"alice"'

echo '3. Another caller is refused at once, with a hint when to retry'
expect "$(charge)" '"code":"LOCK_ACQUISITION_FAILED"' '"retry_after":' '"acquired":false'

echo '4. The status shows who holds it'
expect "$(lock_function status)" '"locked":true' '"owner":"alice"' '"ttl_remaining":'

echo '5. Bob cannot release the lock of Alice'
expect "$(lock_function release ', "owner": "bob"')" '"code":"LOCK_OWNERSHIP_MISMATCH"'

echo '6. Bob waits for a second and times out'
expect "$(charge ', "owner": "bob", "block": {"value": 1, "unit": "second"}')" \
    '"code":"LOCK_TIMEOUT"' 'Lock acquisition timed out after 1 second"'

echo '7. Bob waits for longer, Alice releases, and Bob gets the lock'
charge ', "owner": "bob", "block": {"value": 30, "unit": "second"}, "auto_release": false' >"$folder/bob" &
waiter=$!
sleep 1
expect "$(lock_function release ', "owner": "alice"')" '"released":true'
wait "$waiter" || fail "Bob's request failed"
waiter=
expect "$(cat "$folder/bob")" '"acquired":true' '"owner":"bob"'

echo '8. Bob does not release the lock: an operator force-releases it'
expect "$(lock_function force-release)" '"released":true' '"forced":true'
expect "$(lock_function status)" '"locked":false'
expect "$(lock_function force-release)" '"code":"LOCK_NOT_FOUND"'

echo 'Every answer was as expected'
