<?php

declare(strict_types=1);

namespace Forrst\Tests\Real;

use BadMethodCallException;
use Closure;
use Forrst\Laravel\ForrstLock;
use Forrst\Laravel\ForrstServiceProvider;
use Forrst\Tests\Support\Process;
use Forrst\Tests\Support\Server;
use Forrst\Tests\Support\TestCase;
use Illuminate\Cache\CacheServiceProvider;
use Illuminate\Config\Repository as Config;
use Illuminate\Container\Container;
use Illuminate\Contracts\Cache\LockTimeoutException;
use Illuminate\Support\Facades\Cache;
use Illuminate\Support\Facades\Facade;
use RuntimeException;

/**
 * The driver in Laravel's own cache manager, behind Laravel's own facade.
 */
final class LaravelTest extends TestCase
{
    private static Server $server;

    public static function setUpBeforeClass(): void
    {
        self::$server = new Server();
    }

    public static function tearDownAfterClass(): void
    {
        self::$server->stop();
    }

    protected function setUp(): void
    {
        self::boot(['prefix' => "{$this->getName()}:", 'store' => 'values']);
    }

    protected function tearDown(): void
    {
        Facade::clearResolvedInstances();
    }

    /** @param array<string, mixed> $settings */
    private static function boot(array $settings = [], bool $isProvidedLate = false): void
    {
        Facade::clearResolvedInstances();
        $app = new Container();
        $app->instance('config', new Config(['cache' => [
            'default' => 'forrst',
            'prefix' => 'app_',
            'stores' => [
                'forrst' => ['driver' => 'forrst', 'url' => self::$server->url] + $settings,
                'values' => ['driver' => 'array'],
            ],
        ]]));
        (new CacheServiceProvider($app))->register();
        if ($isProvidedLate) {
            $app->make('cache');
        }
        (new ForrstServiceProvider($app))->register();
        Facade::setFacadeApplication($app);
    }

    private static function name(ForrstLock $lock): string
    {
        return (string) Closure::bind(fn () => $this->name, $lock, ForrstLock::class)();
    }

    public function testGetTakesAFreeLockAndReleaseReleasesIt(): void
    {
        $lock = Cache::lock('key', 30);
        self::assertTrue($lock->get());
        self::assertTrue($lock->isOwnedByCurrentProcess());
        self::assertMatchesRegularExpression('/^\d{15}$/', (string) $lock->fence());
        $other = Cache::lock('key', 30);
        self::assertFalse($other->get());
        self::assertFalse($other->isOwnedByCurrentProcess());
        self::assertTrue($other->isOwnedBy($lock->owner()));
        self::assertFalse($other->release());
        self::assertTrue($lock->release());
        self::assertFalse($lock->release());
        self::assertFalse($lock->isOwnedByCurrentProcess());
        self::assertTrue($other->get());
        self::assertGreaterThan(0, $other->lease()->remaining());
    }

    public function testGetWithACallbackReleasesTheLockAndReturnsItsResult(): void
    {
        $holds = fn () => Cache::lock('key')->get() === false;
        self::assertTrue(Cache::lock('key', 30)->get($holds));
        self::assertFalse($holds());
        Cache::lock('key')->forceRelease();
        try {
            Cache::lock('key', 30)->get(fn () => throw new RuntimeException('the callback'));
        } catch (RuntimeException) {
            self::assertFalse($holds());
        }
    }

    public function testBlockWaitsInTheQueueOfTheServer(): void
    {
        $lock = Cache::lock('key', 30);
        $lock->get();
        $waiter = Process::php(self::$server->url, $this->inAnotherApplication(
            'say((string) $store->lock("key", 30)->block(60, fn () => "got it"));',
        ));
        $locks = self::$server->client()->locks();
        $full = 'lock:' . self::name($lock);
        self::until('it is in the queue', static fn () => count($locks->waiters($full)) === 1);
        $position = $locks->waiters($full)[0];
        $lock->release();
        self::assertSame('got it', $waiter->line());
        self::assertSame(1, $position->position);
    }

    public function testBlockWithoutACallbackHoldsTheLock(): void
    {
        $lock = Cache::lock('key', 30);
        self::assertTrue($lock->block(5));
        self::assertTrue($lock->isOwnedByCurrentProcess());
        self::assertTrue($lock->release());
        try {
            Cache::lock('key', 30)->block(5, fn () => throw new RuntimeException('the callback'));
        } catch (RuntimeException $error) {
            self::assertSame('the callback', $error->getMessage());
        }
        self::assertSame('result', Cache::lock('key', 30)->block(0, fn () => 'result'));
    }

    public function testABlockThatEndsThrowsLaravelsException(): void
    {
        Cache::lock('key', 30)->get();
        foreach ([0, 1] as $seconds) {
            try {
                Cache::lock('key', 30)->block($seconds);
                self::fail('nothing was thrown');
            } catch (LockTimeoutException $error) {
                self::assertNotNull($error->getPrevious());
            }
        }
    }

    public function testTheLockOutlivesItsObjectAndIsRestoredByItsOwner(): void
    {
        $lock = Cache::lock('key', 30);
        $lock->get();
        $owner = $lock->owner();
        unset($lock);
        $process = Process::php(self::$server->url, $this->inAnotherApplication(
            "say(\$store->restoreLock('key', '$owner')->release() ? 'released' : 'not held');",
        ));
        self::assertSame('released', $process->line());
        self::assertTrue(Cache::lock('key', 30, 'me')->get());
        self::assertFalse(Cache::restoreLock('key', 'another')->release());
        self::assertTrue(Cache::restoreLock('key', 'me')->isOwnedByCurrentProcess());
        self::assertTrue(Cache::restoreLock('key', 'me')->extend(60));
        self::assertTrue(Cache::restoreLock('key', 'me')->release());
        self::assertFalse(Cache::restoreLock('key', 'me')->extend(60));
    }

    public function testForceReleaseReleasesTheLockOfAnotherOwner(): void
    {
        $lock = Cache::lock('key', 30);
        $lock->get();
        Cache::lock('key')->forceRelease();
        Cache::lock('key')->forceRelease();
        $next = Cache::lock('key', 30);
        self::assertTrue($next->get());
        self::assertFalse($lock->release(), 'it must not release the next holder');
        self::assertFalse($lock->extend());
        self::assertTrue($next->isOwnedByCurrentProcess());
    }

    public function testAnExpiredLockIsNoLongerOwned(): void
    {
        $lock = Cache::lock('key', 1, 'me');
        $lock->get();
        self::until('it has expired', static fn () => !$lock->isOwnedByCurrentProcess());
        $next = Cache::lock('key', 30, 'me');
        self::assertTrue($next->get());
        self::assertFalse($lock->release(), 'not even the next lease of the same owner');
        self::assertTrue($next->isOwnedByCurrentProcess());
        self::assertTrue($next->release());
    }

    public function testALockWithoutAnEndIsHeldForADay(): void
    {
        $lock = Cache::lock('key');
        self::assertTrue($lock->get());
        self::assertGreaterThan(80_000, $lock->lease()->remaining());
        self::assertLessThan(86_400, $lock->lease()->remaining());
        self::assertTrue($lock->extend(30));
        self::assertLessThan(30, $lock->lease()->remaining());
    }

    public function testThePrefixIsThatOfTheStoreOrOfTheCache(): void
    {
        self::assertSame("{$this->getName()}:key", self::name(Cache::lock('key')));
        self::boot(isProvidedLate: true);
        self::assertSame('app_key', self::name(Cache::lock('key')));
        self::boot(['prefix' => '']);
        $lock = Cache::lock('key', 30);
        $lock->get();
        self::assertSame('lock:key', $lock->lease()->fullKey);
        self::assertTrue($lock->release());
    }

    public function testValuesAreKeptByTheOtherStore(): void
    {
        Cache::put('a', 1, 60);
        self::assertSame(1, Cache::get('a'));
        self::assertSame(1, Cache::store('values')->get('a'));
        self::assertSame(3, Cache::increment('a', 2));
        self::assertSame(2, Cache::decrement('a'));
        self::assertFalse(Cache::add('a', 5, 60));
        self::assertTrue(Cache::add('b', 5, 60));
        self::assertSame(['a' => 2, 'b' => 5], Cache::many(['a', 'b']));
        self::assertTrue(Cache::putMany(['c' => 1], 60));
        self::assertSame('new', Cache::remember('d', 60, fn () => 'new'));
        self::assertTrue(Cache::forever('e', 1) && Cache::forget('e'));
        self::assertNull(Cache::get('e'));
        self::assertTrue(Cache::flush());
        self::assertNull(Cache::get('a'));
    }

    public function testAStoreWithoutAnotherOneKeepsOnlyLocks(): void
    {
        self::boot();
        self::assertTrue(Cache::lock('only', 30)->get(fn () => true));
        $this->expectException(BadMethodCallException::class);
        $this->expectExceptionMessage('name the store for values as `store`');
        Cache::get('a');
    }

    private function inAnotherApplication(string $code): string
    {
        $bootstrap = var_export(dirname(__DIR__) . '/bootstrap.php', true);
        return "require $bootstrap; \$store = new Forrst\\Laravel\\ForrstStore(\$client, '{$this->getName()}:'); $code";
    }
}
