"""What an answer or an error of the SDK means, decided in one place.

For a conditional write there is one question: may it have been applied? What
is not certain counts as yes.
"""

from __future__ import annotations

from typing import Literal

from botocore import exceptions as sdk  # type: ignore[import-untyped]

from store.text import neutral_line
from store.value import value


@value
class Meaning:
    """What went wrong.

    Attributes:
        kind: ``absent``: no such object, in S3's own words. ``race``: the condition did not hold, or another write was
            in progress. ``expired``: refused for credentials that new ones may replace. ``refused``: certainly not
            done, and the same again would not be. ``trouble``: may have been done, or may be worth another try.
        reason: one line for a person.
        status: the HTTP status; 0 without an answer.
    """

    kind: Literal["absent", "race", "expired", "refused", "trouble"]
    reason: str
    status: int = 0


_EXPIRED = frozenset(("ExpiredToken", "ExpiredTokenException", "TokenRefreshRequired", "RequestExpired"))
_SKEWED = frozenset(("RequestTimeTooSkewed", "RequestInTheFuture"))
_NOT_YET = frozenset(("RequestTimeout", "SlowDown", "OperationAborted", "ConditionalRequestConflict"))

# Raised before anything is sent, by what a person has configured.
_CONFIGURED = (
    sdk.NoCredentialsError,
    sdk.PartialCredentialsError,
    sdk.CredentialRetrievalError,
    sdk.NoAuthTokenError,
    sdk.TokenRetrievalError,
    sdk.SSOError,
    sdk.ProfileNotFound,
    sdk.ConfigParseError,
    sdk.ConfigNotFound,
    sdk.InvalidConfigError,
    sdk.UnknownCredentialError,
    sdk.RefreshWithMFAUnsupportedError,
    sdk.MissingDependencyException,
    sdk.MetadataRetrievalError,
    sdk.BaseEndpointResolverError,
    sdk.EndpointProviderError,
    sdk.ValidationError,
    sdk.ParamValidationError,
    sdk.UnsupportedS3ConfigurationError,
    sdk.InvalidRetryConfigurationError,
    sdk.InvalidProxiesConfigError,
)


def meaning_of(problem: Exception) -> Meaning:
    """What an exception of the SDK means.

    Everything that it is known to raise gets a line of its own; what is not known counts as ``trouble``, so that
    nothing is ever called "not applied" by mistake.
    """
    if isinstance(problem, sdk.ClientError):
        return _answered(problem.response)
    if isinstance(problem, sdk.NoCredentialsError):
        return Meaning("refused", "no credentials were found in the environment or the AWS configuration")
    if isinstance(problem, sdk.SSLError):
        if "CERTIFICATE" in str(problem).upper():
            return Meaning("refused", f"its certificate is not trusted: {_line(problem)}")
        return Meaning("trouble", _line(problem))
    if isinstance(problem, _CONFIGURED):
        return Meaning("refused", _line(problem))
    if isinstance(problem, (sdk.ReadTimeoutError, sdk.ConnectTimeoutError)):
        return Meaning("trouble", "no answer in time")
    if isinstance(problem, (sdk.ConnectionClosedError, sdk.ResponseStreamingError, sdk.IncompleteReadError)):
        return Meaning("trouble", "the connection was cut before the whole answer came")
    if isinstance(problem, (sdk.ConnectionError, sdk.HTTPClientError)):
        return Meaning("trouble", _line(problem))
    return Meaning("trouble", f"{type(problem).__name__}: {_line(problem)}")


def misconfigured(problem: Exception) -> Meaning:
    """What a failure to make a client means: nothing was sent, and the configuration has to change."""
    known = meaning_of(problem)
    return known if known.kind == "refused" else Meaning("refused", _line(problem))


def _answered(response: dict[str, dict[str, object]]) -> Meaning:
    status = int(str(response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)))
    error = response.get("Error", {})
    code, message = str(error.get("Code", "")), _line(error.get("Message", ""))
    said = f"{code}: {message}" if message and code else code or message or "no reason given"

    def mean(kind: Literal["absent", "race", "expired", "refused", "trouble"], reason: str) -> Meaning:
        return Meaning(kind, reason, status)

    if code == "NoSuchBucket":
        return mean("refused", "there is no such bucket")
    if code in _EXPIRED:
        return mean("expired", "the credentials have expired")
    if code in _SKEWED:
        headers = response.get("ResponseMetadata", {}).get("HTTPHeaders", {})
        theirs = headers.get("date") if isinstance(headers, dict) else None
        return mean(
            "refused", "this machine's clock is wrong" + (f": the store's says {_line(theirs)}" if theirs else "")
        )
    if code == "NoSuchKey":
        return mean("absent", "there is no such object")
    if status == 412:
        return mean("race", "the object is not the one that was expected")
    if status == 409:
        return mean("race", f"somebody else was writing ({said})")
    if status in (408, 429) or code in _NOT_YET or (status >= 500 and status != 501):
        return mean("trouble", f"the store answered {status} ({said})")
    if status == 501:
        return mean("refused", f"the store does not implement it ({said})")
    if code in ("InvalidAccessKeyId", "SignatureDoesNotMatch", "InvalidToken", "AuthFailure"):
        return mean("refused", f"the credentials are not valid here ({said})")
    if status in (301, 307, 308) or code in ("AuthorizationHeaderMalformed", "IllegalLocationConstraintException"):
        return mean("refused", f"the bucket is in another region ({said})")
    if code.startswith("KMS."):
        return mean("refused", f"the encryption key cannot be used ({said})")
    if status in (401, 403):
        return mean("refused", f"access denied ({said})")
    if status == 404:  # of a proxy or a wrong address: no proof that an object is gone
        return mean("trouble", f"the store answered 404 ({said})")
    if 400 <= status < 500:
        return mean("refused", f"the store answered {status} ({said})")
    return mean("trouble", f"the store answered {status} ({said})")


def _line(text: object) -> str:
    """Foreign text as the end of a line: no breaks, nothing that acts on a terminal, not too long."""
    shown = neutral_line(" ".join(str(text).split()))
    return shown.rstrip(".") if len(shown) <= 200 else shown[:199] + "…"
