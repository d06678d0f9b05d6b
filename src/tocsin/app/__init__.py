"""Jobs defined in code: an application object whose decorated functions are jobs.

    from tocsin import Context, Tocsin

    app = Tocsin("billing")

    @app.job(schedule="every day at 2am")
    async def nightly(context: Context, limit: int = 100) -> dict[str, int]: ...

    app.run()

The definition that a decorator makes is that of a job file. A worker of the application has the handler of each function.

    application   the object `Tocsin`
    job, step     decorated functions
    trace         plans of graphs
    stand_ins     unknown results
    declarations  fields of decorators, and handlers
    signature     types of parameters and results
    operations    its client
    errors        wrong signatures and inputs
"""

from .application import Tocsin
from .errors import AppError, ArgumentsError, SignatureError
from .job import Graph, Job
from .stand_ins import UntraceableError
from .trace import Step

__all__ = ["AppError", "ArgumentsError", "Graph", "Job", "SignatureError", "Step", "Tocsin", "UntraceableError"]
