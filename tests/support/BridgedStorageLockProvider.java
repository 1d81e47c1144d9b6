package org.apache.hudi.client.transaction.lock;

import java.io.ByteArrayInputStream;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.util.UUID;
import org.apache.hudi.client.transaction.lock.models.LockGetResult;
import org.apache.hudi.client.transaction.lock.models.LockProviderHeartbeatManager;
import org.apache.hudi.client.transaction.lock.models.LockUpsertResult;
import org.apache.hudi.client.transaction.lock.models.StorageLockData;
import org.apache.hudi.client.transaction.lock.models.StorageLockFile;
import org.apache.hudi.common.config.LockConfiguration;
import org.apache.hudi.common.config.TypedProperties;
import org.apache.hudi.common.util.Option;
import org.apache.hudi.common.util.collection.Pair;
import org.apache.hudi.storage.StorageConfiguration;
import org.slf4j.LoggerFactory;

/**
 * Hudi's StorageBasedLockProvider with a client for a local HTTP server instead of a cloud client.
 *
 * <p>Hudi's own clients are only for S3, GCS and Azure, and are in separate bundles. This client reads and writes the
 * lock file with the requests that S3 accepts: GET, and PUT with If-None-Match or If-Match.
 */
public class BridgedStorageLockProvider extends StorageBasedLockProvider {
  private static final String URL = "hoodie.test.lock.url";

  public BridgedStorageLockProvider(LockConfiguration configuration, StorageConfiguration<?> ignored) {
    super(
        UUID.randomUUID().toString(),
        configuration.getConfig(),
        LockProviderHeartbeatManager::new,
        (owner, path, properties) -> new Client(properties),
        LoggerFactory.getLogger(BridgedStorageLockProvider.class),
        null);
  }

  private static final class Client implements StorageLockClient {
    private final HttpClient http = HttpClient.newHttpClient();
    private final URI url;

    Client(TypedProperties properties) {
      url = URI.create(properties.getString(URL));
    }

    @Override
    public Pair<LockGetResult, Option<StorageLockFile>> readCurrentLockFile() {
      HttpResponse<byte[]> answer = send(HttpRequest.newBuilder(url).GET());
      if (answer.statusCode() == 404) {
        return Pair.of(LockGetResult.NOT_EXISTS, Option.empty());
      }
      if (answer.statusCode() != 200) {
        return Pair.of(LockGetResult.UNKNOWN_ERROR, Option.empty());
      }
      ByteArrayInputStream body = new ByteArrayInputStream(answer.body());
      return Pair.of(LockGetResult.SUCCESS, Option.of(StorageLockFile.createFromStream(body, tag(answer))));
    }

    @Override
    public Pair<LockUpsertResult, Option<StorageLockFile>> tryUpsertLockFile(
        StorageLockData data, Option<StorageLockFile> before) {
      HttpRequest.Builder put =
          HttpRequest.newBuilder(url).PUT(HttpRequest.BodyPublishers.ofByteArray(StorageLockFile.toByteArray(data)));
      if (before.isPresent()) {
        put.header("If-Match", before.get().getVersionId());
      } else {
        put.header("If-None-Match", "*");
      }
      HttpResponse<byte[]> answer = send(put);
      if (answer.statusCode() == 412) {
        return Pair.of(LockUpsertResult.ACQUIRED_BY_OTHERS, Option.empty());
      }
      if (answer.statusCode() != 200) {
        return Pair.of(LockUpsertResult.UNKNOWN_ERROR, Option.empty());
      }
      return Pair.of(LockUpsertResult.SUCCESS, Option.of(new StorageLockFile(data, tag(answer))));
    }

    @Override
    public Option<String> readObject(String path, boolean checkExistsFirst) {
      return Option.empty();
    }

    @Override
    public boolean writeObject(String path, String content) {
      return false;
    }

    @Override
    public void close() {}

    private static String tag(HttpResponse<byte[]> answer) {
      return answer.headers().firstValue("ETag").orElseThrow();
    }

    private HttpResponse<byte[]> send(HttpRequest.Builder request) {
      try {
        return http.send(request.build(), HttpResponse.BodyHandlers.ofByteArray());
      } catch (IOException error) {
        throw new UncheckedIOException(error);
      } catch (InterruptedException error) {
        Thread.currentThread().interrupt();
        throw new IllegalStateException(error);
      }
    }
  }
}
