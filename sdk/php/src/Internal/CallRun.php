<?php

declare(strict_types=1);

namespace Forrst\Internal;

use Forrst\Call;
use Forrst\Exception\Contended;
use Forrst\Exception\ForrstException;
use Forrst\Exception\TimedOut;
use Forrst\Response;

/**
 * A call under way. By default it is retried only if the function certainly did not begin.
 *
 * @internal
 */
final class CallRun
{
    private readonly Tries $tries;
    private readonly Wait $wait;
    private readonly ?float $deadline;

    public function __construct(private readonly Connector $connector, private readonly Call $call)
    {
        $wait = $call->lock?->wait;
        $wait = $wait === null ? null : Duration::given($wait, 'wait');
        $this->wait = new Wait($wait);
        $deadline = $call->deadline;
        $this->deadline = $deadline === null ? null : Clock::now() + Duration::given($deadline, 'deadline');
        $retry = $call->retry ?? $connector->retry;
        $this->tries = new Tries($retry, $call->idempotent, $this->deadline, $wait ?? 0.0);
    }

    public function run(): Response
    {
        while (true) {
            try {
                return $this->send();
            } catch (ForrstException $error) {
                if ($this->wait->goesOnAfter($error, $this->connector)) {
                    continue;
                }
                $isContended = $error instanceof Contended || $error instanceof TimedOut;
                if ($isContended && $this->tries->hasLostAnswer() && $error->failure !== null) {
                    $why = ' (it may be held by an earlier try of this call, whose answer was lost)';
                    $error = new ($error::class)($error->getMessage() . $why, $error->failure);
                }
                $this->tries->after($error);
                if ($isContended) {
                    $this->wait->restart();
                }
            }
        }
    }

    private function send(): Response
    {
        $call = ['function' => $this->call->function, 'arguments' => (object) $this->call->arguments];
        if ($this->call->version !== null) {
            $call['version'] = $this->call->version;
        }
        $extensions = [];
        foreach ($this->call->extensions as $extension) {
            $extensions[] = isset($extension['options'])
                ? ['options' => (object) $extension['options']] + $extension
                : $extension;
        }
        $block = $this->wait->next();
        if ($this->call->lock !== null) {
            $extensions[] = $this->call->lock->toExtension($block);
        }
        if ($this->call->cancellation !== null) {
            $token = ['token' => $this->call->cancellation];
            $extensions[] = ['urn' => 'urn:forrst:ext:cancellation', 'options' => $token];
        }
        $until = $this->deadline ?? Clock::now() + $this->connector->timeout + ($block ?? 0.0);
        return $this->connector->send($call, $extensions, $until, $this->deadline !== null, $this->call->context);
    }
}
