package org.apache.hudi.aws.transaction.lock;

import java.io.ByteArrayInputStream;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.util.Properties;
import org.apache.hudi.client.transaction.lock.StorageLockClient;
import org.apache.hudi.client.transaction.lock.models.LockGetResult;
import org.apache.hudi.client.transaction.lock.models.LockUpsertResult;
import org.apache.hudi.client.transaction.lock.models.StorageLockData;
import org.apache.hudi.client.transaction.lock.models.StorageLockFile;
import org.apache.hudi.common.util.Option;
import org.apache.hudi.common.util.collection.Pair;

/**
 * The client with which Hudi's StorageBasedLockProvider reads and writes the lock file of a table on S3.
 *
 * <p>Hudi loads the class of this name for the schemes s3 and s3a. Its own one is in a separate bundle, which Maven
 * Central does not have for this release. This one sends the same requests: GET, and PUT with If-None-Match or If-Match.
 * A local server wants a signature, but does not check it.
 */
public class S3StorageLockClient implements StorageLockClient {
  private static final String ENDPOINT = "hoodie.test.s3.endpoint";
  private static final String SIGNATURE =
      "AWS4-HMAC-SHA256 Credential=key/20260101/us-east-1/s3/aws4_request, SignedHeaders=host, Signature=0";

  private final HttpClient http = HttpClient.newHttpClient();
  private final URI url;

  public S3StorageLockClient(String owner, String lockFile, Properties properties) {
    this(URI.create(properties.getProperty(ENDPOINT) + lockFile.replaceFirst("^s3a?:/", "")));
  }

  public S3StorageLockClient(URI url) {
    this.url = url;
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
      return http.send(request.header("Authorization", SIGNATURE).build(), HttpResponse.BodyHandlers.ofByteArray());
    } catch (IOException error) {
      throw new UncheckedIOException(error);
    } catch (InterruptedException error) {
      Thread.currentThread().interrupt();
      throw new IllegalStateException(error);
    }
  }
}
