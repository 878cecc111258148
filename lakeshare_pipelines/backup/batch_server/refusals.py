"""What the stand-in answers instead of a result: the exceptions of the s3control service model.

Refused                  code, status, message
├── bad_request          BadRequestException      400
├── not_found            NotFoundException        404
├── wrong_status         JobStatusException       400
├── other_request        IdempotencyException     400
├── too_many_tags        TooManyTagsException     400
├── bad_next_token       InvalidNextTokenException 400
├── denied               AccessDenied             403
└── out_of_order         InternalServiceException 500
"""


class Refused(Exception):
    """A request that is answered with an error; the edge turns it into XML."""

    def __init__(self, code: str, status: int, message: str) -> None:
        super().__init__(message)
        self.code, self.status, self.message = code, status, message


def bad_request(message: str) -> Refused:
    """The request says what the service model or the guide rules out."""
    return Refused("BadRequestException", 400, message)


def not_found(job_id: str) -> Refused:
    """The account has no such job."""
    return Refused("NotFoundException", 404, f"the account has no job {job_id}. List its jobs with ListJobs.")


def wrong_status(message: str) -> Refused:
    """The job's status does not allow what is asked."""
    return Refused("JobStatusException", 400, message)


def other_request(job_id: str) -> Refused:
    """The token was used for a request that said something else."""
    return Refused(
        "IdempotencyException",
        400,
        f"this ClientRequestToken made job {job_id} from another request. Take a new token for a new job.",
    )


def too_many_tags(count: int) -> Refused:
    """More tags than a job can have."""
    return Refused("TooManyTagsException", 400, f"a job has at most 50 tags, not {count}.")


def bad_next_token(token: str) -> Refused:
    """A page that no answer told of."""
    return Refused("InvalidNextTokenException", 400, f"no page of jobs is called {token!r}.")


def denied(message: str) -> Refused:
    """Nobody known signed the request."""
    return Refused("AccessDenied", 403, message)


def out_of_order(reason: str) -> Refused:
    """The stand-in itself cannot go on."""
    return Refused(
        "InternalServiceException", 500, f"jobs are not run any more: {reason}. Start the service again."
    )
