<?php

declare(strict_types=1);

namespace Forrst\Internal;

use Forrst\Exception\DeadlineExceeded;
use Forrst\Exception\ForrstException;
use Forrst\Exception\Interrupted;
use Forrst\Exception\InvalidRequest;
use Forrst\Exception\Unreachable;
use Forrst\Response;
use Forrst\Retry;
use JsonException;

/**
 * Sends requests to the server, and retries those to its system functions.
 *
 * @internal
 */
final class Connector
{
    public const LOCKS = 'urn:cline:forrst:ext:atomic-lock:fn:';

    /** The part of what is left that the server gets, so that its answer arrives before the deadline. */
    private const MAX_HEAD_START = 0.05;

    /** How long a client that is destroyed goes on with what it has left to do. */
    private const LAST_MOMENT = 1.0;

    public readonly Background $background;

    public function __construct(
        public readonly Transport $transport,
        public readonly Retry $retry,
        public readonly float $timeout,
    ) {
        $this->background = new Background();
    }

    /**
     * Calls a system function, and retries as the tries allow.
     *
     * @param array<string, mixed> $arguments
     */
    public function ask(string $function, array $arguments, ?Tries $tries = null, ?float $patience = null): mixed
    {
        $tries ??= new Tries($this->retry);
        while (true) {
            $until = Clock::now() + ($patience ?? $this->timeout);
            try {
                return $this->askOnce($function, $arguments, min($until, $tries->deadline ?? $until));
            } catch (ForrstException $error) {
                $tries->after($error);
            }
        }
    }

    /**
     * Calls a system function once.
     *
     * @param array<string, mixed> $arguments
     */
    public function askOnce(string $function, array $arguments, float $until, bool $isDeadline = false): mixed
    {
        $call = ['function' => $function, 'arguments' => (object) $arguments];
        return $this->send($call, [], $until, $isDeadline)->result;
    }

    /**
     * Sends a request once. Errors that the server reports are thrown.
     *
     * @param array<string, mixed> $call
     * @param list<array<string, mixed>> $extensions
     * @param array<string, mixed>|null $context
     * @param bool $isDeadline whether the server ends the call then, too
     */
    public function send(array $call, array $extensions, float $until, bool $isDeadline, ?array $context = null): Response
    {
        if ($isDeadline) {
            $left = $until - Clock::now();
            if ($left < 0.001) {
                throw new DeadlineExceeded('the deadline has passed before the request was sent');
            }
            $left = max(0.001, $left - min($left / 10, self::MAX_HEAD_START));
            $extensions[] = ['urn' => 'urn:forrst:ext:deadline', 'options' => Duration::toWire($left)];
        }
        $id = Uuid::random();
        $body = self::encode($id, $call, $extensions, $context);
        try {
            $answer = $this->transport->send($body, $until);
        } catch (Interrupted | Unreachable $error) {
            if ($isDeadline && Clock::now() >= $until) {
                throw new DeadlineExceeded('the deadline has passed without an answer', previous: $error);
            }
            throw $error;
        }
        $response = Response::read($answer, $id);
        $failure = $response->failure();
        return $failure === null ? $response : throw $failure->toException();
    }

    /**
     * Begins a call of a system function whose answer is read later.
     *
     * @param array<string, mixed> $arguments
     * @return array{Exchange, string} the exchange, and the id of the request
     */
    public function start(string $function, array $arguments, float $until): array
    {
        $id = Uuid::random();
        $call = ['function' => $function, 'arguments' => (object) $arguments];
        return [$this->transport->start(self::encode($id, $call, [], null), $until), $id];
    }

    /**
     * @param array<string, mixed> $call
     * @param list<array<string, mixed>> $extensions
     * @param array<string, mixed>|null $context
     */
    private static function encode(string $id, array $call, array $extensions, ?array $context): string
    {
        $request = ['protocol' => ['name' => 'forrst', 'version' => '0.1.0'], 'id' => $id, 'call' => $call];
        if ($context !== null) {
            $request['context'] = (object) $context;
        }
        if ($extensions !== []) {
            $request['extensions'] = $extensions;
        }
        try {
            return json_encode(
                $request,
                JSON_THROW_ON_ERROR | JSON_UNESCAPED_SLASHES | JSON_UNESCAPED_UNICODE | JSON_PRESERVE_ZERO_FRACTION,
                64,
            );
        } catch (JsonException $why) {
            throw new InvalidRequest("the request cannot be written as JSON: {$why->getMessage()}", previous: $why);
        }
    }

    public function __destruct()
    {
        $this->background->settle(self::LAST_MOMENT);
    }
}
