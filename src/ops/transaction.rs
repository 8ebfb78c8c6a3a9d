//! Reading several tensors back at once, as one transaction of `B`: read one by one, each would
//! wait for the device by itself.

use burn_backend::ExecutionError;
use burn_backend::ops::{TransactionOps, TransactionPrimitive, TransactionPrimitiveData};

use crate::LctBackend;
use crate::store::PackedStore;
use crate::tensor::{LctTensor, before_result, result_of};

impl<B: PackedStore> TransactionOps<Self> for LctBackend<B> {
    fn tr_execute(
        transaction: TransactionPrimitive<Self>,
    ) -> impl Future<Output = Result<TransactionPrimitiveData, ExecutionError>> + Send {
        let device = transaction.read_floats.first().map(LctTensor::device);
        device.iter().for_each(before_result::<B>);
        let data = B::tr_execute(TransactionPrimitive::new(
            transaction
                .read_floats
                .into_iter()
                .map(LctTensor::dense)
                .collect(),
            transaction.read_qfloats,
            transaction.read_ints,
            transaction.read_bools,
        ));
        async move {
            match device {
                Some(device) => result_of::<B, _>(device, data).await,
                None => data.await,
            }
        }
    }
}
