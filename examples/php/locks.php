<?php declare(strict_types=1);

/**
 * Locks from PHP, with json_encode and file_get_contents alone. Each step prints and checks the answer.
 *
 *   forrst serve --demo                                  in one terminal
 *   php examples/php/locks.php [http://127.0.0.1:7420]   in another
 *
 * Exits with 0 if every answer was as expected. Needs PHP 8.2.
 */

const LOCK = 'urn:forrst:ext:atomicLock';
const LOCK_FUNCTION = 'urn:cline:forrst:ext:atomic-lock:fn:';

/** What the server answered. */
final readonly class Answer
{
    public function __construct(
        public int $status,
        /** @var array<string, string> by name in lower case */
        public array $headers,
        public array $body,
    ) {
    }

    public function errorCode(): ?string
    {
        return $this->body['errors'][0]['code'] ?? null;
    }

    /** The data of an extension. */
    public function extension(string $urn): ?array
    {
        foreach ($this->body['extensions'] ?? [] as $extension) {
            if ($extension['urn'] === $urn) {
                return $extension['data'];
            }
        }
        return null;
    }
}

/** Empty arrays are sent as `[]`, which the server takes for empty objects. */
function call(string $function, array $arguments = [], array $extensions = []): Answer
{
    global $url;
    $request = [
        'protocol' => ['name' => 'forrst', 'version' => '0.1.0'],
        'id' => bin2hex(random_bytes(8)),
        'call' => ['function' => $function, 'arguments' => $arguments],
        'extensions' => $extensions,
    ];
    $context = stream_context_create(['http' => [
        'method' => 'POST',
        'header' => 'Content-Type: application/json',
        'content' => json_encode($request, JSON_THROW_ON_ERROR),
        'timeout' => 60,
        // Statuses such as 423 have a body, too.
        'ignore_errors' => true,
    ]]);
    $text = file_get_contents("$url/forrst", false, $context);
    $text !== false || fail("there is no answer from $url");
    $lines = $http_response_header;
    preg_match('{^HTTP/\S+ (\d+)}', array_shift($lines), $status);
    $headers = [];
    foreach ($lines as $line) {
        [$name, $value] = explode(':', $line, 2);
        $headers[strtolower($name)] = trim($value);
    }
    $body = json_decode($text, true, flags: JSON_THROW_ON_ERROR);
    check($body['id'] === $request['id'], 'the answer has the id of the request');
    return new Answer((int) $status[1], $headers, $body);
}

function seconds(int $value): array
{
    return ['value' => $value, 'unit' => 'second'];
}

/** A charge under the lock of this run. */
function charge(array $options = [], array $extensions = []): Answer
{
    global $key;
    $lock = ['urn' => LOCK, 'options' => ['key' => $key, 'ttl' => seconds(60), ...$options]];
    return call('payments.charge', ['user_id' => 'user_123', 'amount' => 100], [$lock, ...$extensions]);
}

/** A function for the lock of this run. */
function lockFunction(string $name, array $arguments = []): Answer
{
    global $fullKey;
    return call(LOCK_FUNCTION . $name, ['key' => $fullKey, ...$arguments]);
}

function check(bool $holds, string $what): void
{
    $holds || fail("not so: $what");
}

function fail(string $why): never
{
    fwrite(STDERR, "FAILED: $why\n");
    exit(1);
}

/** Prints the answer, and checks its status and the code of its first error. */
function expect(Answer $answer, int $status, ?string $errorCode = null): Answer
{
    echo "  $answer->status ", json_encode($answer->body, JSON_UNESCAPED_SLASHES), "\n";
    check($answer->status === $status, "the status is $status");
    check($answer->errorCode() === $errorCode, 'the error is ' . ($errorCode ?? 'absent'));
    return $answer;
}

$url = rtrim($argv[1] ?? 'http://127.0.0.1:7420', '/');
$key = 'user:' . bin2hex(random_bytes(4));
$fullKey = "lock:payments.charge:$key";

echo "1. A charge under a lock, which is released with the answer\n";
$answer = expect(charge(), 200);
check($answer->body['result']['status'] === 'succeeded', 'the charge succeeded');
$lock = $answer->extension(LOCK);
check($lock['acquired'] === true && $lock['full_key'] === $fullKey, 'the lock was acquired');
check(lockFunction('status')->body['result']['locked'] === false, 'the lock is free again');

echo "2. A lock that is kept beyond the call\n";
$owner = expect(charge(['auto_release' => false]), 200)->extension(LOCK)['owner'];
$status = expect(lockFunction('status'), 200)->body['result'];
check($status['locked'] && $status['owner'] === $owner, 'the status names the owner');
check(new DateTimeImmutable($status['expires_at']) > new DateTimeImmutable($status['acquired_at']), 'it expires later');

echo "3. Another caller is refused at once, and reads when to come back\n";
$answer = expect(charge([], [['urn' => 'urn:forrst:ext:retry']]), 423, 'LOCK_ACQUISITION_FAILED');
check($answer->extension(LOCK)['acquired'] === false, 'the lock was not acquired');
check(preg_match('/^[1-9]\d*$/', $answer->headers['retry-after'] ?? '') === 1, 'Retry-After is a number of seconds');
$retry = $answer->extension('urn:forrst:ext:retry');
check($retry['allowed'] && $retry['after']['unit'] === 'second', 'a retry may help, after some seconds');

echo "4. One that waits for a second times out\n";
$answer = expect(charge(['block' => seconds(1)]), 423, 'LOCK_TIMEOUT');
check($answer->body['errors'][0]['details']['waited'] == seconds(1), 'it waited for a second');

echo "5. Only the owner releases it, and only once\n";
expect(lockFunction('release', ['owner' => 'another owner']), 403, 'LOCK_OWNERSHIP_MISMATCH');
expect(lockFunction('release', ['owner' => $owner]), 200);
expect(lockFunction('release', ['owner' => $owner]), 409, 'LOCK_ALREADY_RELEASED');

echo "6. One that waits gets the lock of a holder that never releases it\n";
expect(charge(['ttl' => seconds(1), 'auto_release' => false]), 200);
expect(charge(['block' => seconds(30)]), 200);

echo "7. Errors point at what is wrong, all at once\n";
$answer = expect(charge(['ttl' => 60, 'auto_relase' => false]), 400, 'INVALID_ARGUMENTS');
$pointers = array_map(fn (array $error) => $error['source']['pointer'], $answer->body['errors']);
sort($pointers);
check($pointers === ['/extensions/0/options/auto_relase', '/extensions/0/options/ttl'], 'both options are named');
expect(call('payments.chrage'), 404, 'FUNCTION_NOT_FOUND');
$answer = expect(call('demo.fail', ['code' => 'RATE_LIMITED', 'message' => 'Too many']), 429, 'RATE_LIMITED');
check(preg_match('/^[1-9]\d*$/', $answer->headers['retry-after'] ?? '') === 1, 'Retry-After is a number of seconds');

echo "8. A deadline bounds the call\n";
$deadline = ['urn' => 'urn:forrst:ext:deadline', 'options' => ['timeout' => seconds(1)]];
expect(call('demo.sleep', ['ms' => 30_000], [$deadline]), 408, 'DEADLINE_EXCEEDED');

echo "Every answer was as expected\n";
