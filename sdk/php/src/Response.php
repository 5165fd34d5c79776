<?php

declare(strict_types=1);

namespace Forrst;

use Forrst\Exception\Forbidden;
use Forrst\Exception\Interrupted;
use Forrst\Exception\NotUnderstood;
use Forrst\Exception\Unauthorized;
use Forrst\Internal\Answer;
use JsonException;

/**
 * The answer to a call: its result or its errors, the data of its extensions, and the node that answered.
 */
final class Response
{
    /**
     * @param list<array{code: string, message: string, pointer: ?string, details: array<string, mixed>}> $errors
     * @param list<array{urn: string, data: array<string, mixed>}> $extensions
     */
    private function __construct(
        /** Null if the server refused the request before it had read it. */
        public readonly ?string $id,
        public readonly mixed $result,
        public readonly array $errors,
        public readonly array $extensions,
        /** Which server process answered. */
        public readonly ?string $node,
        /** The header `Retry-After`, in seconds. */
        public readonly ?float $retryAfter,
    ) {
    }

    /** What the server answered instead of a result; null if the call succeeded. */
    public function failure(): ?Failure
    {
        return $this->errors === [] ? null : new Failure($this);
    }

    /** The lock that the call ran under; null if it had none, or did not get it. */
    public function lock(): ?Held
    {
        $data = $this->lockData();
        return ($data['acquired'] ?? false) === true ? Held::fromData($data) : null;
    }

    /**
     * The data of the lock; null if the answer has none.
     *
     * @return array<string, mixed>|null
     */
    public function lockData(): ?array
    {
        foreach ($this->extensions as $extension) {
            if (in_array($extension['urn'], Lock::URNS, true)) {
                return $extension['data'];
            }
        }
        return null;
    }

    /**
     * Reads the answer to the request with this id. The body decides; the status counts only if the body is not a Forrst answer.
     *
     * @internal
     */
    public static function read(Answer $answer, string $id): self
    {
        try {
            $body = json_decode($answer->body, true, 128, JSON_THROW_ON_ERROR);
        } catch (JsonException) {
            $body = null;
        }
        if (!is_array($body) || ($body['protocol']['name'] ?? null) !== 'forrst' || !array_key_exists('id', $body)) {
            throw match ($answer->status) {
                401 => new Unauthorized('the server does not accept the API key (HTTP status 401)'),
                403 => new Forbidden('not allowed (HTTP status 403)'),
                429, 502, 503, 504 => new Interrupted(
                    "no answer came, and the request may have been carried out: HTTP status {$answer->status} of a proxy",
                    $answer->retryAfter,
                ),
                default => new NotUnderstood("the answer is not a Forrst answer (HTTP status {$answer->status})"),
            };
        }
        $errors = self::errors($body['errors'] ?? []);
        if ($body['id'] !== $id && ($body['id'] !== null || $errors === [])) {
            throw new NotUnderstood('the answer is to another request');
        }
        if ($errors === [] && !array_key_exists('result', $body)) {
            throw new NotUnderstood('the answer has neither a result nor errors');
        }
        $extensions = [];
        foreach (is_array($body['extensions'] ?? null) ? $body['extensions'] : [] as $extension) {
            if (is_string($extension['urn'] ?? null) && is_array($extension['data'] ?? null)) {
                $extensions[] = ['urn' => $extension['urn'], 'data' => $extension['data']];
            }
        }
        $node = $body['meta']['node'] ?? null;
        return new self(
            $body['id'],
            $body['result'] ?? null,
            $errors,
            $extensions,
            is_string($node) ? $node : null,
            $answer->retryAfter,
        );
    }

    /** @return list<array{code: string, message: string, pointer: ?string, details: array<string, mixed>}> */
    private static function errors(mixed $errors): array
    {
        if (!is_array($errors)) {
            throw new NotUnderstood('the errors of the answer are not a list');
        }
        $read = [];
        foreach ($errors as $error) {
            if (!is_string($error['code'] ?? null)) {
                throw new NotUnderstood('an error of the answer has no code');
            }
            $pointer = $error['source']['pointer'] ?? null;
            $read[] = [
                'code' => $error['code'],
                'message' => is_string($error['message'] ?? null) ? $error['message'] : '',
                'pointer' => is_string($pointer) ? $pointer : null,
                'details' => is_array($error['details'] ?? null) ? $error['details'] : [],
            ];
        }
        return $read;
    }
}
