<?php

declare(strict_types=1);

namespace Forrst\Internal;

use Forrst\Exception\ForrstException;
use Forrst\Retry;

/**
 * What is left to do for callers that no longer wait for it: withdrawals, and releases of leases that were dropped.
 *
 * PHP has no background, so each task is tried once when it is added, and again when it is due: before the next request about a
 * lock, in {@see \Forrst\Client::settle()}, and for a moment when the client is destroyed.
 *
 * @internal
 */
final class Background
{
    /** How long the tries may take, since another request waits for them. */
    private const PATIENCE = 2.0;

    /** @var array<int, array{run: callable(float): void, tries: Tries, due: float, until: float}> */
    private array $tasks = [];

    private bool $isRunning = false;

    /** A process that is forked from this one leaves it to this one. */
    private readonly int $process;

    public function __construct()
    {
        $this->process = (int) getmypid();
    }

    /**
     * @param callable(float): void $run does it, with an answer until that time
     * @param float $time after that many seconds it is pointless
     */
    public function add(callable $run, float $time): void
    {
        $until = Clock::now() + $time;
        $tries = new Tries(Retry::inBackground($time), deadline: $until);
        $this->tasks[] = ['run' => $run, 'tries' => $tries, 'due' => 0.0, 'until' => $until];
        $this->runDue();
    }

    /** Runs what is due, each task once, for so many seconds at most. */
    public function runDue(float $patience = self::PATIENCE): void
    {
        if ($this->isRunning || $this->process !== getmypid()) {
            return;
        }
        $this->isRunning = true;
        $end = Clock::now() + $patience;
        try {
            foreach ($this->tasks as $index => $task) {
                if ($task['due'] <= Clock::now() && Clock::now() < $end) {
                    $this->run($index, $end);
                }
            }
        } finally {
            $this->isRunning = false;
        }
    }

    /** Runs tasks until none is left, for so many seconds at most. Whether none is left. */
    public function settle(float $limit): bool
    {
        $end = Clock::now() + $limit;
        while ($this->tasks !== [] && $this->process === getmypid() && ($left = $end - Clock::now()) > 0) {
            $this->runDue(min(self::PATIENCE, $left));
            $due = min([...array_column($this->tasks, 'due'), $end]);
            usleep((int) (max(0.0, min($due - Clock::now(), 0.1)) * 1e6));
        }
        return $this->tasks === [];
    }

    private function run(int $index, float $end): void
    {
        ['run' => $run, 'tries' => $tries, 'until' => $until] = $this->tasks[$index];
        $pause = null;
        try {
            $run(min($end, $until));
        } catch (ForrstException $error) {
            $pause = $tries->pauseAfter($error);
        }
        if ($pause === null) {
            unset($this->tasks[$index]);
        } else {
            $this->tasks[$index]['due'] = Clock::now() + $pause;
        }
    }
}
